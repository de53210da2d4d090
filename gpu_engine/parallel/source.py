"""One rank's share of a checkpoint, read without the rest where the file format allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from headrace.gpu_engine.models.weights.tensors import TensorSource
from headrace.gpu_engine.parallel.share import Share


@runtime_checkable
class SpanSource(TensorSource, Protocol):
    """A checkpoint of which a part can be read by itself."""

    def read_span(self, name: str, dim: int, span: range) -> torch.Tensor:
        """Of the tensor `name` only the indices `span` of dimension `dim`."""


@dataclass(frozen=True, slots=True)
class SharedSource:
    """Implements `TensorSource`: `shapes` are those of whole tensors, so that the checkpoint is checked as
    ever, and `read` gives the part that `share` keeps."""

    source: TensorSource
    share: Share

    @property
    def origin(self) -> str:
        return self.source.origin

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.source.shapes

    def read(self, name: str) -> torch.Tensor:
        part = self.share.part(name)
        if self.share.is_left_out(name):
            return torch.zeros(self.shapes[name])
        if part is None:
            return self.source.read(name)
        pieces = [self._read_span(name, part.dim, span) for span in part.spans]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.dim)

    def _read_span(self, name: str, dim: int, span: range) -> torch.Tensor:
        if isinstance(self.source, SpanSource):
            return self.source.read_span(name, dim, span)
        whole = self.source.read(name)  # a copy of the part, or the whole would be kept with it
        return whole.narrow(dim, span.start, len(span)).clone()
