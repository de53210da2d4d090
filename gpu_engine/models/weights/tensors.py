"""Where a model's tensors come from, and the check that they are the ones the model needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import torch

from headrace.gpu_engine.models.errors import ModelError

PLAIN: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Dtypes whose numbers are the weights themselves."""

NAMED: Final = 5
"""How many tensors an error names before it counts the rest."""


class TensorSource(Protocol):
    """A checkpoint. Names and layouts are those of Hugging Face, whatever the file's own are."""

    @property
    def origin(self) -> str:
        """What to call it in a message."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors it holds."""

    def read(self, name: str) -> torch.Tensor:
        """One tensor in the dtype it is stored in; raises ModelError where the file is damaged."""


class Tensors:
    """A checked source, handing out tensors in the dtype that the model computes in.

    Raises ModelError naming what is missing, unexpected, or of another shape than `expected`.
    """

    def __init__(
        self, source: TensorSource, expected: Mapping[str, tuple[int, ...]], dtype: torch.dtype
    ) -> None:
        _check(source, expected)
        self._source = source
        self._dtype = dtype

    def take(self, name: str) -> torch.Tensor:
        tensor = self._source.read(name)
        if tensor.dtype not in PLAIN:
            raise ModelError(
                f"In {self._source.origin} {name} is stored as {str(tensor.dtype).removeprefix('torch.')}, "
                "which means nothing without scales; use the unquantised model or a GGUF file."
            )
        return tensor.to(self._dtype).contiguous()


def _check(source: TensorSource, expected: Mapping[str, tuple[int, ...]]) -> None:
    there = source.shapes
    if missing := [name for name in expected if name not in there]:
        raise ModelError(
            f"The weights in {source.origin} lack {listed(missing)}; "
            "download the model again or check that its config is its own."
        )
    if unexpected := [name for name in there if name not in expected and not _is_harmless(name)]:
        raise ModelError(
            f"The weights in {source.origin} hold {listed(unexpected)}, which a model of this config "
            "does not have; check that the config is the model's own."
        )
    for name, shape in expected.items():
        if there[name] != shape:
            raise ModelError(
                f"In {source.origin} {name} has shape {list(there[name])}, but by the model's config it "
                f"should be {list(shape)}; check that the config is the model's own."
            )


def _is_harmless(name: str) -> bool:
    """Old checkpoints store what follows from the config: rotary frequencies, a copy of tied embeddings.
    A head that is not tied is expected, and so never gets here."""
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    ordered = list(names)
    rest = len(ordered) - NAMED
    return ", ".join(ordered[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
