"""Random weights, for trying a pipeline or measuring speed without a download."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

ORIGIN: Final = "random weights"


@dataclass(frozen=True, slots=True)
class RandomTensors:
    """Weights that depend on `seed` and their name alone, scaled so that activations stay finite at any
    depth: matrices normal with variance 1 / columns, norms one, biases small."""

    shapes: Mapping[str, tuple[int, ...]]
    seed: int = 0
    origin: str = ORIGIN

    def read(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
