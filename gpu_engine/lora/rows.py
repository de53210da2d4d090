"""Which rows of a step belong to which adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
BARE = -1


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Rows of a step by the number of their adapter.

    of_row  int32 [rows], BARE where there is none
    order   int32 [those with one], sorted by adapter and then by row
    groups  (adapter, its rows) for each that is there, in the order of `order`
    """

    of_row: Ints
    order: Ints
    groups: Sequence[tuple[int, Ints]]


def group_rows(adapters: Sequence[int], lengths: Sequence[int]) -> AdapterRows | None:
    """Of a step of chunks with these adapters and numbers of rows; None where no chunk has an adapter."""
    if all(adapter == BARE for adapter in adapters):
        return None
    of_row = np.repeat(np.asarray(adapters, np.int32), lengths)
    by_adapter = np.argsort(of_row, kind="stable").astype(np.int32)
    order = by_adapter[np.count_nonzero(of_row == BARE) :]
    numbers, starts = np.unique(of_row[order], return_index=True)
    groups = zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
    return AdapterRows(of_row, order, list(groups))
