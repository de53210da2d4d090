"""Loads a rank's share of a model; what cannot be shared is refused by name before any rank starts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from headrace.gpu_engine.attention.contract import AttentionBackend, BackendFactory, KVSpec
from headrace.gpu_engine.attention.select import select_backend
from headrace.gpu_engine.backend import load_dtype
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.memory.machine import require_memory
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import read_model_type
from headrace.gpu_engine.models.load import LoadedModel, open_checkpoint
from headrace.gpu_engine.models.registry import is_family
from headrace.gpu_engine.models.shapes import tensor_shapes
from headrace.gpu_engine.models.stretch import stretch
from headrace.gpu_engine.models.weights.resolve import model_name, resolve_model
from headrace.gpu_engine.models.weights.tensors import TensorSource
from headrace.gpu_engine.parallel.decoder import SharedDecoder
from headrace.gpu_engine.parallel.group import RankGroup
from headrace.gpu_engine.parallel.share import Share, refuse_uneven


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose files are found and whose config is known; nothing large is read yet."""

    name: str
    fingerprint: str
    config: ModelConfig
    source: TensorSource

    @property
    def num_weights(self) -> int:
        """Of the whole model."""
        return sum(math.prod(shape) for shape in tensor_shapes(self.config).values())


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
    """The model that `config` names. Raises ModelError where it cannot be shared by as many ranks, or not
    by the backend that `config` asks for."""
    size = config.tensor_parallel_size
    _refuse_settings(config)
    path = resolve_model(config.model)
    if path.is_dir() and not is_family(read_model_type(path)):
        raise ModelError(
            f"A model of type '{read_model_type(path)}' is computed by transformers and cannot be shared by "
            f"{size} ranks; leave tensor_parallel_size at 1."
        )
    model, source, fingerprint = open_checkpoint(path, config.load_format)
    refuse_uneven(model, size)
    stretched = stretch(model, config.max_total_tokens)
    fingerprint += "" if stretched is model else "/long"
    return OpenModel(model_name(config.model, path), fingerprint, stretched, source)


def load_share(config: EngineConfig, model: OpenModel, group: RankGroup) -> LoadedModel:
    """The share of this rank, whose decoder is a `SharedDecoder`; `num_bytes` are of all ranks. Sets the
    number of torch's threads, which is the process's own, to this rank's share. Raises ModelError."""
    torch.set_num_threads(share_of_threads(config))
    dtype = load_dtype(config)
    num_bytes = model.num_weights * dtype.itemsize
    require_memory(num_bytes, f"The weights of {config.model} take", "use a smaller model, or bfloat16")
    decoder = SharedDecoder(Share(model.config, group.rank, group.size), model.source, dtype, group)
    return LoadedModel(model.name, model.fingerprint, num_bytes, decoder)


def choose_memory(config: EngineConfig) -> BackendFactory:
    """What keeps a rank's part of the KV memory."""
    return SharedMemory(select_backend(config.attention), config.tensor_parallel_size)


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
    if config.backend == "native":
        raise ModelError(
            f"backend native computes a whole step in one process, so {size} ranks cannot share it; "
            "use backend auto, which takes torch's operators, or leave tensor_parallel_size at 1."
        )
    if config.weight_format not in ("auto", "float32"):
        raise ModelError(
            f"weight_format {config.weight_format} needs the native kernels, which {size} ranks cannot "
            "share; leave weight_format at auto, or tensor_parallel_size at 1."
        )
