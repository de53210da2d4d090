"""Adapters laid out for the kernels (`kernels/cpu/lora.h`): the rows of A side by side for all parts of a
matrix, the columns of B as those of the packed weights lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, get_args

import torch
from torch.nn.functional import pad

from headrace.gpu_engine.lora.adapter import LowRank
from headrace.gpu_engine.lora.adapters import Adapters
from headrace.gpu_engine.lora.places import Matrix
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.native.declarations import (
    DecoderLorasStruct,
    LoraLayerStruct,
    LoraPartStruct,
    LoraRowsStruct,
)
from headrace.gpu_engine.native.pool import Pool

_MATRICES: Final[tuple[Matrix, ...]] = get_args(Matrix)


class NativeLoras:
    """What a native decoder adds to its products, by the adapters that `adapters` holds."""

    def __init__(self, adapters: Adapters, pool: Pool, config: ModelConfig) -> None:
        self._adapters = adapters
        self._lanes: int = pool.kernels.headrace_lanes()
        self._half = config.intermediate_size
        self._tensors: list[torch.Tensor] = []
        self._tables: list[Any] = []  # ctypes arrays, which the kernels are given by address
        layers = [self._describe(i) for i in range(config.num_layers)]
        self._struct = LoraRowsStruct(layers=self._keep((DecoderLorasStruct * len(layers))(*layers)))
        adapters.release()

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    def rows(self) -> ctypes._Pointer[LoraRowsStruct] | None:
        """Those of the step that is computed now; None where none has an adapter."""
        rows = self._adapters.rows
        if rows is None:
            return None
        self._struct.of_row, self._struct.order = rows.of_row.ctypes.data, rows.order.ctypes.data
        self._struct.count = len(rows.order)
        return ctypes.pointer(self._struct)

    def _describe(self, layer: int) -> DecoderLorasStruct:
        tables: dict[str, int] = {}
        for matrix in _MATRICES:
            if self._adapters.add_to(layer, matrix):
                each = [one.layers[layer].get(matrix, ()) for one in self._adapters.loaded]
                adding = [self._lay(parts, gated=matrix == "gate_up") for parts in each]
                tables[matrix] = self._keep((LoraLayerStruct * len(adding))(*adding))
        return DecoderLorasStruct(**tables)

    def _lay(self, parts: Sequence[LowRank], *, gated: bool) -> LoraLayerStruct:
        """What one adapter adds to one matrix."""
        if not parts:
            return LoraLayerStruct()
        rows = torch.cat([part.a for part in parts])
        rows = pad(rows, (0, 0, 0, -len(rows) % self._lanes))
        by_vectors = self._hold(rows.view(-1, self._lanes, rows.shape[1]).transpose(1, 2))
        structs, first_rank = [], 0
        for part in parts:
            structs += self._lay_columns(part, first_rank, gated=gated)
            first_rank += len(part.a)
        return LoraLayerStruct(
            a=by_vectors,
            parts=self._keep((LoraPartStruct * len(structs))(*structs)),
            ranks=len(rows),
            num_parts=len(structs),
        )

    def _lay_columns(self, part: LowRank, first_rank: int, *, gated: bool) -> list[LoraPartStruct]:
        """B, cut where gates end and ups begin: their vectors lie in turn."""
        columns = part.b * part.scale
        if not gated:
            assert part.start % self._lanes == 0, "heads are whole vectors"
            return [self._lay_slice(columns, first_rank, part.start // self._lanes, 1)]
        halves = [(columns, part.start >= self._half)]
        if len(columns) > self._half:
            halves = [(half, bool(i)) for i, half in enumerate(columns.split(self._half))]
        return [self._lay_slice(half, first_rank, int(is_up), 2) for half, is_up in halves]

    def _lay_slice(self, b: torch.Tensor, first_rank: int, first: int, stride: int) -> LoraPartStruct:
        padded = pad(b, (0, 0, 0, -len(b) % self._lanes))
        vectors = padded.view(-1, self._lanes, b.shape[1]).transpose(1, 2)
        return LoraPartStruct(
            b=self._hold(vectors),
            first_rank=first_rank,
            ranks=b.shape[1],
            first=first,
            stride=stride,
            count=len(vectors),
        )

    def _hold(self, tensor: torch.Tensor) -> int:
        """The address of its numbers in order, which stay as long as this object."""
        self._tensors.append(tensor.contiguous())
        return self._tensors[-1].data_ptr()

    def _keep(self, table: Any) -> int:
        self._tables.append(table)
        return ctypes.addressof(table)
