"""The C interface of `kernels/cpu`, declared for ctypes. The structures mirror those of its headers."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Final


class Format(IntEnum):
    """How weights are kept; see `kernels/cpu/formats.h`."""

    FLOAT32 = 0
    BF16 = 1
    INT16 = 2
    INT8 = 3
    INT4 = 4


class Into(IntEnum):
    """What becomes of a product; see `kernels/cpu/linear.h`."""

    STORE = 0
    ADD = 1
    GATED_SILU = 2
    GATED_GELU = 3


class CacheFormat(IntEnum):
    FLOAT32 = 0
    BF16 = 1


class LinearStruct(Structure):
    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("format", c_int32),
    )


class StepStruct(Structure):
    _fields_ = (
        ("slots", c_void_p),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("positions", c_void_p),
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("table_stride", c_int32),
    )


class AttentionStruct(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
        ("rotated", c_int32),
        ("block", c_int32),
        ("window", c_int32),
        ("cache_format", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("eps", c_float),
    )


class ExpertsStruct(Structure):
    _fields_ = (
        ("router", LinearStruct),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("count", c_int32),
        ("per_token", c_int32),
        ("normalised", c_int32),
    )


class LayerStruct(Structure):
    _fields_ = (
        ("attention", AttentionStruct),
        ("qkv", LinearStruct),
        ("output", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("attention_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("post_mlp_norm", c_void_p),
        ("gate", c_int32),
        ("experts", ExpertsStruct),
    )


class DecoderStruct(Structure):
    _fields_ = (
        ("layers", c_void_p),
        ("norm", c_void_p),
        ("head", LinearStruct),
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("eps", c_float),
    )


class LoraPartStruct(Structure):
    """This and those below: see `kernels/cpu/lora.h`."""

    _fields_ = (
        ("b", c_void_p),
        ("first_rank", c_int32),
        ("ranks", c_int32),
        ("first", c_int32),
        ("stride", c_int32),
        ("count", c_int32),
    )


class LoraLayerStruct(Structure):
    _fields_ = (("a", c_void_p), ("parts", c_void_p), ("ranks", c_int32), ("num_parts", c_int32))


class DecoderLorasStruct(Structure):
    _fields_ = (("qkv", c_void_p), ("output", c_void_p), ("gate_up", c_void_p), ("down", c_void_p))


class LoraRowsStruct(Structure):
    _fields_ = (("layers", c_void_p), ("of_row", c_void_p), ("order", c_void_p), ("count", c_int32))


_PROTOTYPES: Final = {
    "headrace_pool": (c_void_p, [c_int, c_int]),
    "headrace_free_pool": (None, [c_void_p]),
    "headrace_lanes": (c_int, []),
    "headrace_columns": (c_int, []),
    "headrace_packed_bytes": (c_int64, [c_int] * 3),
    "headrace_num_scales": (c_int64, [c_int] * 3),
    "headrace_pack": (None, [c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_void_p, c_void_p]),
    "headrace_linear": (
        None,
        [c_void_p, POINTER(LinearStruct), c_void_p, c_int, c_void_p, c_float, c_int, c_void_p],
    ),
    "headrace_attend": (
        None,
        [c_void_p, POINTER(AttentionStruct), POINTER(StepStruct), c_void_p, c_void_p],
    ),
    "paged_attention": (None, [c_void_p] * 10 + [c_int] * 7 + [c_float, c_int]),
    "headrace_forward": (
        None,
        [c_void_p, POINTER(DecoderStruct), POINTER(StepStruct), POINTER(LoraRowsStruct), c_void_p],
    ),
    "headrace_logits": (None, [c_void_p, POINTER(DecoderStruct), c_void_p, c_int, c_void_p]),
}


def declare(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """The same, its functions' arguments and results declared."""
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels
