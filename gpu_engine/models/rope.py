"""Rotary position embedding (Su et al. 2021) and its scalings, computed as transformers computes them:
the same operations in the same order in float32, so that greedy answers agree token for token."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from headrace.gpu_engine.models.config import RopeConfig

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's positions, each [T, 1, rotated] so that they spread over heads."""

Rotate = Callable[[torch.Tensor, Rotation], torch.Tensor]


class Rope:
    """Turns positions into rotations. `inv_freq` float32 [rotated / 2]."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        self.inv_freq = inverse_frequencies(config, head_dim)
        self.attention_factor = config.attention_factor

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and sines for `positions` [T]."""
        angles = positions[:, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(dtype), sin.to(dtype)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotates heads `x` [T, heads, head_dim]: dimension i pairs with i + head_dim / 2, as in GPT-NeoX."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotate_start(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotates the start of each head only, as many dimensions as `rotation` has; the rest stays."""
    rotated = rotation[0].shape[-1]
    return torch.cat((rotate(x[..., :rotated], rotation), x[..., rotated:]), dim=-1)


def rotated_dims(config: RopeConfig, head_dim: int) -> int:
    """How many dimensions of each head are rotated."""
    return int(head_dim * config.share)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position for each pair of dimensions, float32 [rotated / 2]."""
    dims = rotated_dims(config, head_dim)
    wavelengths = config.theta ** (torch.arange(0, dims, 2, dtype=torch.float) / dims)
    match config.kind:
        case "linear":
            return _divide(1.0 / wavelengths / config.factor, config)
        case "llama3":
            return _divide(_scale_llama3(1.0 / wavelengths, config), config)
        case "yarn":
            return _divide(_scale_yarn(wavelengths, config), config)
        case "longrope":
            return 1.0 / (torch.tensor(config.divisors, dtype=torch.float) * wavelengths)
        case _:
            return _divide(1.0 / wavelengths, config)


def _divide(inv_freq: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    return inv_freq / torch.tensor(config.divisors, dtype=torch.float) if config.divisors else inv_freq


def _scale_llama3(inv_freq: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    low, high, context = config.low_freq_factor, config.high_freq_factor, config.original_context
    wavelength = 2 * math.pi / inv_freq
    is_long, is_short = wavelength > context / low, wavelength < context / high
    scaled = torch.where(is_long, inv_freq / config.factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * scaled / config.factor + smooth * scaled
    return torch.where(~is_long & ~is_short, blended, scaled)


def _scale_yarn(wavelengths: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """YaRN (Peng et al. 2023): dimensions that turn more than `beta_fast` times in the original context are
    kept, those that turn less than `beta_slow` times are stretched by `factor`, those between blended."""
    dims = 2 * len(wavelengths)

    def dimension_that_turns(times: float) -> float:
        turns = math.log(config.original_context / (times * 2 * math.pi))
        return dims * turns / (2 * math.log(config.theta))

    low, high = dimension_that_turns(config.beta_fast), dimension_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = (torch.arange(dims // 2, dtype=torch.float) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (config.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
