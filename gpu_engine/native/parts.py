"""What the kernels' decoders make of the parts that torch's are built from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from headrace.gpu_engine.models.config import Activation
from headrace.gpu_engine.models.layers import Linear, OffsetRMSNorm, Part, RMSNorm
from headrace.gpu_engine.native.declarations import Format, Into
from headrace.gpu_engine.native.linear import PackedLinear, pack_linear
from headrace.gpu_engine.native.pool import Pool

GATES: Final[Mapping[Activation, Into]] = MappingProxyType(
    {"silu": Into.GATED_SILU, "gelu_tanh": Into.GATED_GELU}
)


def pack_part(pool: Pool, part: Linear, form: Format, *, gated: bool = False) -> PackedLinear:
    """As `pack_linear`, in half the memory where that loses nothing."""
    return pack_linear(pool, part.weight, part.bias, halved(form, part.weight), gated=gated)


def pack_head(pool: Pool, weight: torch.Tensor, form: Format) -> PackedLinear:
    """Nothing comes behind the head that would level its errors out."""
    form = Format.INT16 if form in (Format.INT8, Format.INT4) else form
    return pack_part(pool, Linear(weight), form)


def halved(form: Format, weight: torch.Tensor) -> Format:
    """BF16 instead of FLOAT32 where half of each number says all of it, as in most checkpoints: half the
    memory, and the same."""
    if form is not Format.FLOAT32:
        return form
    pieces = weight.flatten(0, -2).split(1024)  # copies of a whole head would be large
    is_half = all(torch.equal(piece, piece.bfloat16().to(piece.dtype)) for piece in pieces)
    return Format.BF16 if is_half else form


def norm_weight(norm: Part | None) -> torch.Tensor | None:
    """float32 [hidden], or [head_dim]; None where there is no norm."""
    if norm is None:
        return None
    assert isinstance(norm, RMSNorm | OffsetRMSNorm), "ask can_run first"
    return norm.weight.float().contiguous()
