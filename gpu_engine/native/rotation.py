"""Rotations by position, made once: each step only looks them up."""

from __future__ import annotations

from typing import Final

import torch

from headrace.gpu_engine.models.rope import Rope
from headrace.gpu_engine.native.declarations import AttentionStruct

_LEAST: Final = 1024  # positions


class RotationTable:
    """Cosines and sines of a rope, each float32 [positions, rotated / 2] (the other half of a head is the
    same); for as many positions as the longest context so far has, up to twice of that."""

    def __init__(self, rope: Rope) -> None:
        self._rope = rope
        self._cosines, self._sines = self._rotations(_LEAST)

    def __len__(self) -> int:
        return len(self._cosines)

    def tell(self, layer: AttentionStruct) -> None:
        """Where it stands; until it reaches farther."""
        layer.cosines, layer.sines = self._cosines.data_ptr(), self._sines.data_ptr()
        layer.rotated = 2 * self._cosines.shape[1]

    def reach(self, length: int) -> None:
        """Makes sure that it knows positions 0 … length - 1."""
        known = len(self)
        if known < length:
            while known < length:
                known *= 2
            self._cosines, self._sines = self._rotations(known)

    def _rotations(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        both = self._rope.rotation(torch.arange(count), torch.float32)
        cosines, sines = (half[:, 0, : half.shape[-1] // 2].contiguous() for half in both)
        return cosines, sines
