"""Which arithmetic serves a model: the native kernels, or torch's operators."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import torch

from headrace.gpu_engine.attention.contract import BackendFactory
from headrace.gpu_engine.attention.select import select_backend
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.lora.adapters import load_adapters
from headrace.gpu_engine.lora.torch_linear import attach
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.load import LoadedModel, load_model, require_room
from headrace.gpu_engine.native.attention import NativeMemory, suits
from headrace.gpu_engine.native.declarations import Format
from headrace.gpu_engine.native.decoder import NativeDecoder, can_run
from headrace.gpu_engine.native.library import library
from headrace.gpu_engine.native.pool import Pool

_FORMATS: Final = {"float32": Format.FLOAT32, "int16": Format.INT16, "int8": Format.INT8, "int4": Format.INT4}
_BYTES: Final = {Format.FLOAT32: 4, Format.INT16: 2, Format.INT8: 1.07, Format.INT4: 0.63}
"""About what a weight takes."""
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_backend(config: EngineConfig) -> tuple[LoadedModel, BackendFactory]:
    """The model that `config` names, ready to compute, and what keeps its KV memory. Raises ModelError.

    Sets the number of torch's threads, which is the process's own, where the config names one.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dtype, longest = load_dtype(config), config.max_total_tokens
    model = load_model(config.model, dtype, config.load_format, longest, lazily=True)
    if config.lora_modules:
        model = _with_adapters(config, model)
    if is_native(config, model.decoder):
        return _go_native(config, model)
    refuse_formats(config, model.name)
    if isinstance(model.decoder, Decoder):
        require_room(config.model, model.num_bytes)
        model.decoder.read_layers()
    if config.lora_modules:
        assert isinstance(model.decoder, Decoder), "_with_adapters has seen to it"
        attach(model.decoder, model.adapters)
    return model, select_backend(config.attention)


def _with_adapters(config: EngineConfig, model: LoadedModel) -> LoadedModel:
    """With the adapters that `config` names, loaded and checked."""
    if not isinstance(model.decoder, Decoder):
        raise ModelError(
            f"LoRA adapters cannot be added to {model.name}, which transformers computes; merge one into its "
            "weights and serve that, without lora_modules."
        )
    adapters = load_adapters(
        config.lora_modules,
        model.decoder.config,
        model_name=model.name,
        max_rank=config.max_lora_rank,
    )
    return replace(model, adapters=adapters, num_bytes=model.num_bytes + adapters.num_bytes)


def is_native(config: EngineConfig, decoder: CausalDecoder) -> bool:
    """Whether the native kernels are to serve. Raises ModelError where they should and cannot."""
    if config.backend == "torch" or config.attention != "auto":
        return False
    spec = replace(decoder.kv_spec(config.block_size), dtype=_cache_dtype(config))
    if isinstance(decoder, Decoder) and can_run(decoder.config) and suits(spec):
        return True
    if config.backend == "native":
        raise ModelError(
            "backend native cannot serve this model here: it needs g++, a processor with AVX2, a model of a "
            "family of ours, and a head size and block size of whole vectors; use backend auto."
        )
    return False


def refuse_formats(config: EngineConfig, name: str) -> None:
    """Raises ModelError where `config` asks torch's operators for a format that the native kernels have."""
    if config.weight_format not in ("auto", "float32"):
        ruled_out = config.backend == "torch" or config.attention != "auto"
        why = "the other settings rule out" if ruled_out else f"cannot serve {name} here"
        raise ModelError(
            f"weight_format {config.weight_format} needs the native kernels, which {why}; leave "
            "weight_format at auto."
        )


def native_formats(config: EngineConfig) -> tuple[Format, torch.dtype]:
    """How the native kernels keep weights, and keys and values."""
    return _FORMATS[_weight_format(config)], _cache_dtype(config)


def require_packed_room(model: str, num_weights: float, form: Format) -> None:
    """Raises ModelError where so many weights, kept as `form`, do not fit into this machine's memory."""
    require_room(model, num_weights * _BYTES[form])


def format_suffix(form: Format, cache_dtype: torch.dtype) -> str:
    """What sets a fingerprint apart from that of exact arithmetic; nothing where it is exact."""
    exact = form is Format.FLOAT32 and cache_dtype == torch.float32
    return "" if exact else f"/{form.name.lower()}-{str(cache_dtype).removeprefix('torch.')}"


def _go_native(config: EngineConfig, model: LoadedModel) -> tuple[LoadedModel, BackendFactory]:
    kernels = library()
    assert kernels is not None, "suits has seen them"
    pool = Pool(config.threads or len(os.sched_getaffinity(0)), kernels=kernels, pin=config.pin_threads)
    if config.threads is not None:
        torch.set_num_threads(1)  # torch's would spin beside the pool's, and has little left to do
    form, cache_dtype = native_formats(config)
    assert isinstance(model.decoder, Decoder)
    require_packed_room(config.model, model.num_bytes / model.decoder.dtype.itemsize, form)
    adapters = model.adapters if config.lora_modules else None
    decoder = NativeDecoder(model.decoder, pool, form, cache_dtype, adapters)
    fingerprint = model.fingerprint + format_suffix(form, cache_dtype)
    native = replace(model, decoder=decoder, num_bytes=decoder.num_bytes, fingerprint=fingerprint)
    return native, NativeMemory(pool)


def _weight_format(config: EngineConfig) -> str:
    if config.weight_format != "auto":
        return config.weight_format
    return "float32" if config.dtype in ("auto", "float32") else "int16"


def load_dtype(config: EngineConfig) -> torch.dtype:
    """`auto` is float32 on a CPU: exact, and mostly faster there than half precision."""
    return torch.float32 if config.dtype == "auto" else _DTYPES[config.dtype]


def _cache_dtype(config: EngineConfig) -> torch.dtype:
    if config.kv_cache_dtype != "auto":
        return _DTYPES[config.kv_cache_dtype]
    return torch.float32 if _weight_format(config) == "float32" else torch.bfloat16
