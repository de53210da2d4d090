"""Loads a model by transformers: safetensors only, and never code that a checkpoint brings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from headrace.gpu_engine.memory.errors import is_out_of_memory
from headrace.gpu_engine.memory.machine import require_memory
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.models.foreign.check import require_same_answers
from headrace.gpu_engine.models.foreign.config import read_foreign
from headrace.gpu_engine.models.foreign.decoder import TransformersDecoder
from headrace.gpu_engine.models.foreign.interface import NAME, register
from headrace.gpu_engine.models.foreign.traits import no_interface
from headrace.gpu_engine.models.hf_config import LIBRARY_ERRORS
from headrace.gpu_engine.models.weights.tensors import listed

COMPLAINTS: Final = {
    "missing_keys": "lack",
    "unexpected_keys": "hold what a model of this config does not have:",
    "mismatched_keys": "have other shapes than a model of this config in",
}
SAFE: Final = {"attn_implementation": NAME, "trust_remote_code": False}


def load_foreign(path: Path, config: Any, dtype: torch.dtype) -> TransformersDecoder:
    """The model of a folder, whose `config` transformers has read. Raises ModelError."""
    return _wrap(config, dtype, lambda: _read_weights(path, config, dtype))


def draw_foreign(config: Any, dtype: torch.dtype) -> TransformersDecoder:
    """A model of random weights, the same each time."""
    return _wrap(config, dtype, lambda: _draw_weights(config, dtype))


def _wrap(config: Any, dtype: torch.dtype, make: Callable[[], Any]) -> TransformersDecoder:
    """What fails in transformers' code at values it did not expect is the model's fault, not ours."""
    sizes = read_foreign(config)
    register()
    try:
        _require_memory(config, dtype)
        model = make().eval()
        decoder = TransformersDecoder(sizes, model)
        require_same_answers(model, decoder)
    except (*LIBRARY_ERRORS, ImportError, RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        if isinstance(error, KeyError) and error.args == (NAME,):
            raise no_interface(sizes.architecture) from error  # its own table of classes lacks the name
        raise ModelError(
            f"Models of type '{sizes.architecture}' cannot be run through transformers ({one_line(error)})."
        ) from error
    return decoder


def _require_memory(config: Any, dtype: torch.dtype) -> None:
    """By the model without its weights, since only its own code knows how large a config makes it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **SAFE)
    size = sum(weights.nbytes for weights in model.parameters())
    require_memory(size, "The weights of the model take", "use a smaller model, or bfloat16")


def _read_weights(path: Path, config: Any, dtype: torch.dtype) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **SAFE,
    )
    for key, what in COMPLAINTS.items():
        if names := sorted(str(name) for name in report[key]):
            raise ModelError(
                f"The weights in {path} {what} {listed(names)}; download the model again or check that its "
                "config is its own."
            )
    return model


def _draw_weights(config: Any, dtype: torch.dtype) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype, **SAFE)
