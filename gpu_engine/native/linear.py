"""A weight matrix, packed for the processor's vectors."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import torch

from headrace.gpu_engine.native.declarations import Format, Into, LinearStruct
from headrace.gpu_engine.native.pool import Pool


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """`struct` is what the kernels are given; the tensors are what it points into."""

    struct: LinearStruct
    weights: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    @property
    def num_bytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True)
class PackedStack:
    """Matrices of one shape: `structs` is what the kernels are given, an array of as many; the tensors are
    what it points into."""

    structs: ctypes.Array[LinearStruct]
    weights: torch.Tensor
    scales: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes


def pack_linear(
    pool: Pool, weight: torch.Tensor, bias: torch.Tensor | None, form: Format, *, gated: bool = False
) -> PackedLinear:
    """Packs `weight` [outputs, inputs] and `bias` [outputs], of any float dtype. `gated`: the upper half of
    the outputs are gates, the lower half what they gate (Shazeer 2020); the product is half as wide."""
    stack = pack_stack(pool, weight[None], form, gated=gated)
    struct = stack.structs[0]
    laid_bias = None if bias is None else _lay_bias(bias, gated, pool.kernels.headrace_columns())
    struct.bias = None if laid_bias is None else laid_bias.data_ptr()
    return PackedLinear(struct, stack.weights, stack.scales, laid_bias)


def pack_stack(pool: Pool, weights: torch.Tensor, form: Format, *, gated: bool = False) -> PackedStack:
    """Packs `weights` [count, outputs, inputs] one after the other into one piece of memory."""
    kernels = pool.kernels
    count, outputs, inputs = weights.shape
    size = form.value, outputs, inputs
    num_bytes, num_scales = kernels.headrace_packed_bytes(*size), kernels.headrace_num_scales(*size)
    packed, scales = _huge_pages(count * num_bytes), torch.empty(count * num_scales)
    structs = (LinearStruct * count)()
    for i in range(count):
        rows = weights[i].float().contiguous()
        laid, laid_scales = packed[i * num_bytes :].data_ptr(), scales[i * num_scales :].data_ptr() or None
        kernels.headrace_pack(
            pool.handle, form, rows.data_ptr(), outputs, inputs, int(gated), laid, laid_scales
        )
        structs[i] = LinearStruct(
            weights=laid, scales=laid_scales, inputs=inputs, outputs=outputs, format=form.value
        )
    return PackedStack(structs, packed, scales)


def multiply(
    pool: Pool,
    layer: PackedLinear,
    x: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    into: Into = Into.STORE,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One product by itself: x [rows, inputs] → [rows, outputs], float32. `norm`: weight of an RMS
    normalisation before it; `out`: what `Into.ADD` adds to."""
    gated = into in (Into.GATED_SILU, Into.GATED_GELU)
    width = layer.struct.outputs // 2 if gated else layer.struct.outputs
    x = x.float().contiguous()
    out = torch.empty(len(x), width) if out is None else out
    weight = None if norm is None else norm.float().contiguous()
    pool.kernels.headrace_linear(
        pool.handle,
        ctypes.byref(layer.struct),
        x.data_ptr(),
        len(x),
        None if weight is None else weight.data_ptr(),
        eps,
        into,
        out.data_ptr(),
    )
    return out


def _lay_bias(bias: torch.Tensor, gated: bool, columns: int) -> torch.Tensor:
    """As the columns of the packed blocks lie, padded with zeros."""
    bias = bias.float()
    if gated:
        lanes = columns // 2
        halves = [torch.nn.functional.pad(half, (0, -len(half) % lanes)) for half in bias.chunk(2)]
        return torch.stack([half.view(-1, lanes) for half in halves], dim=1).reshape(-1).contiguous()
    return torch.nn.functional.pad(bias, (0, -len(bias) % columns)).contiguous()


def _huge_pages(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes], on pages of 2 MiB where the system has them: fewer misses while weights stream."""
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes)
