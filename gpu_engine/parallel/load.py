"""Loads a rank's share of a model; what cannot be shared is refused by name before any rank starts."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import torch

from headrace.gpu_engine.attention.contract import AttentionBackend, BackendFactory, KVSpec
from headrace.gpu_engine.attention.select import select_backend
from headrace.gpu_engine.backend import (
    format_suffix,
    is_native,
    load_dtype,
    native_formats,
    refuse_formats,
    require_packed_room,
)
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import read_model_type
from headrace.gpu_engine.models.load import LoadedModel, open_checkpoint, require_room
from headrace.gpu_engine.models.registry import is_family
from headrace.gpu_engine.models.shapes import count_weights
from headrace.gpu_engine.models.weights.resolve import model_name, resolve_model
from headrace.gpu_engine.models.weights.tensors import TensorSource
from headrace.gpu_engine.native.attention import NativeMemory
from headrace.gpu_engine.native.library import library
from headrace.gpu_engine.native.pool import Pool
from headrace.gpu_engine.parallel.decoder import SharedDecoder, build_share, sum_over
from headrace.gpu_engine.parallel.group import RankGroup
from headrace.gpu_engine.parallel.native import Kernels, NativeShare
from headrace.gpu_engine.parallel.share import Share, refuse_uneven


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose files are found and whose config is known; nothing large is read yet."""

    name: str
    fingerprint: str
    config: ModelConfig
    source: TensorSource


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Implements `BackendFactory`: a block has a part on each of `ranks` ranks, and takes the memory of all
    of them together."""

    factory: BackendFactory
    ranks: int

    def block_bytes(self, spec: KVSpec) -> int:
        return self.ranks * self.factory.block_bytes(spec)

    def __call__(self, spec: KVSpec, num_blocks: int) -> AttentionBackend:
        return self.factory(spec, num_blocks)


def open_model(config: EngineConfig) -> OpenModel:
    """The model that `config` names. Raises ModelError where it cannot be shared by as many ranks."""
    size = config.tensor_parallel_size
    _refuse_settings(config)
    path = resolve_model(config.model)
    if path.is_dir() and not is_family(read_model_type(path)):
        raise ModelError(
            f"A model of type '{read_model_type(path)}' is computed by transformers and cannot be shared by "
            f"{size} ranks; leave tensor_parallel_size at 1."
        )
    model, source, fingerprint = open_checkpoint(path, config.load_format, config.max_total_tokens)
    refuse_uneven(model, size)
    return OpenModel(model_name(config.model, path), fingerprint, model, source)


def load_share(
    config: EngineConfig, model: OpenModel, group: RankGroup
) -> tuple[LoadedModel, BackendFactory]:
    """The share of this rank, whose decoder is a `SharedDecoder`, and what keeps its KV memory; `num_bytes`
    are of all ranks. Raises ModelError.

    Sets the number of torch's threads, which is the process's own, to this rank's share, and binds the
    calling thread to this rank's CPUs where `pin_threads` is set.
    """
    torch.set_num_threads(share_of_threads(config))
    dtype = load_dtype(config)
    share = Share(model.config, group.rank, group.size)
    decoder = build_share(share, model.source, dtype, group)
    if _is_native(config, decoder):
        return _go_native(config, model, share, decoder, group)
    refuse_formats(config, model.name)
    num_bytes = count_weights(model.config) * dtype.itemsize
    require_room(config.model, num_bytes)
    shared = SharedDecoder(share, sum_over(group, decoder), group)
    memory = SharedMemory(select_backend(config.attention), share.size)
    return LoadedModel(model.name, model.fingerprint, num_bytes, shared), memory


def _go_native(
    config: EngineConfig, model: OpenModel, share: Share, decoder: Decoder, group: RankGroup
) -> tuple[LoadedModel, BackendFactory]:
    kernels = library()
    assert kernels is not None, "is_native has seen them"
    threads = share_of_threads(config)
    if config.pin_threads:
        os.sched_setaffinity(0, share_of_cpus(os.sched_getaffinity(0), share))
    pool = Pool(threads, kernels=kernels, pin=config.pin_threads)
    torch.set_num_threads(1)  # torch's would spin beside the pool's, and has little left to do
    form, cache_dtype = native_formats(config)
    require_packed_room(config.model, count_weights(model.config), form)
    own = NativeShare(decoder, Kernels(pool, form, group), cache_dtype)
    suffix = format_suffix(form, cache_dtype)
    # A scale spans the inputs of one rank only, so that other numbers of ranks round otherwise.
    fingerprint = model.fingerprint + (suffix and f"{suffix}/{share.size}")
    loaded = LoadedModel(
        model.name, fingerprint, share.size * own.num_bytes, SharedDecoder(share, own, group)
    )
    return loaded, SharedMemory(NativeMemory(pool), share.size)


def _is_native(config: EngineConfig, decoder: Decoder) -> bool:
    if decoder.config.experts is None:
        return is_native(config, decoder)
    if config.backend == "native":
        raise ModelError(
            "The native kernels do not share experts among ranks; use backend auto, which takes torch's "
            "operators, or leave tensor_parallel_size at 1."
        )
    return False


def share_of_cpus(cpus: Collection[int], share: Share) -> Collection[int]:
    """Neighbours among `cpus`, no rank's those of another; all where there are fewer than ranks."""
    count = len(cpus) // share.size
    return sorted(cpus)[share.rank * count : (share.rank + 1) * count] or cpus


def share_of_threads(config: EngineConfig) -> int:
    """`threads` are those of all ranks together, and so are the machine's."""
    threads = config.threads or len(os.sched_getaffinity(0))
    return max(1, threads // config.tensor_parallel_size)


def _refuse_settings(config: EngineConfig) -> None:
    size = config.tensor_parallel_size
    if config.lora_modules:
        raise ModelError(
            f"LoRA adapters cannot be shared by {size} ranks; merge one into the model's weights, or leave "
            "tensor_parallel_size at 1."
        )
