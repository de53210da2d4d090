"""Rotary position embedding (Su et al. 2021) and its scalings, computed as transformers computes them:
the same operations in the same order in float32, so that greedy answers agree token for token."""

from __future__ import annotations

import math

import torch

from headrace.gpu_engine.models.config import RopeConfig


class Rope:
    """Turns positions into rotations. `inv_freq` float32 [head_dim / 2]."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        self.inv_freq = inverse_frequencies(config, head_dim)

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines for `positions` [T], each [T, 1, head_dim] so that they spread over heads."""
        angles = positions[:, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotates heads `x` [T, heads, head_dim]: dimension i pairs with i + head_dim / 2, as in GPT-NeoX."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position for each pair of dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
    inv_freq = 1.0 / (config.theta**exponents)
    if config.divisors:
        return inv_freq / torch.tensor(config.divisors, dtype=torch.float)
    match config.kind:
        case "linear":
            return inv_freq / config.factor
        case "llama3":
            return _scale_llama3(inv_freq, config)
        case _:
            return inv_freq


def _scale_llama3(inv_freq: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    low, high, context = config.low_freq_factor, config.high_freq_factor, config.original_context
    wavelength = 2 * math.pi / inv_freq
    is_long, is_short = wavelength > context / low, wavelength < context / high
    scaled = torch.where(is_long, inv_freq / config.factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * scaled / config.factor + smooth * scaled
    return torch.where(~is_long & ~is_short, blended, scaled)
