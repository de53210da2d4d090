"""From a transformers config object to ours, for what all families share."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

from huggingface_hub.errors import StrictDataclassError

from headrace.gpu_engine.models.config import Activation, ModelConfig, RopeConfig
from headrace.gpu_engine.models.errors import ModelError, wrong_config
from headrace.gpu_engine.models.hf_rope import read_rope

LIBRARY_ERRORS: Final = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    StrictDataclassError,
)
"""What transformers and gguf raise at values in a file that they did not expect."""

ACTIVATIONS: Final = MappingProxyType[str, Activation](
    {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
)

FULL, SLIDING = "full_attention", "sliding_attention"

SMALLEST: Final = {
    "vocab_size": 1,
    "hidden_size": 1,
    "intermediate_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2,
}
MOST_LAYERS: Final = 10_000


def read_decoder(config: Any, **family: Any) -> ModelConfig:
    """The fields that all decoders of the Llama kind have; `family` adds or replaces those that differ.
    `config` is a transformers config, whose classes know the defaults that a config.json leaves out."""
    refuse_senseless(config)
    fields: dict[str, Any] = {
        "architecture": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": head_dim_of(config),
        "max_context": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "tied_embeddings": bool(config.tie_word_embeddings),
    }
    if "activation" not in family:
        fields["activation"] = read_activation(config.hidden_act)
    if "rope" not in family:
        fields["rope"] = read_whole_rope(config, config.rope_parameters)
    if "windows" not in family:
        require_layer_types(config, FULL)
    return ModelConfig(**fields | family)


def read_activation(name: str) -> Activation:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise ModelError(
            f"The model's activation '{name}' is not supported; supported are {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def read_whole_rope(config: Any, parameters: dict[str, Any]) -> RopeConfig:
    """The rope of a family that rotates whole heads."""
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("The model rotates only a part of each head, which is not supported.")
    return read_rope(
        parameters, max_context=config.max_position_embeddings, head_dim=head_dim_of(config), share=1.0
    )


def windows_by_type(config: Any) -> tuple[int | None, ...]:
    """Windows of a family whose `layer_types` say which layers have one."""
    require_layer_types(config, FULL, SLIDING)
    return _windows(config, [kind == SLIDING for kind in config.layer_types])


def windows_everywhere(config: Any) -> tuple[int | None, ...]:
    """Windows of a family that has one in all layers, or in none."""
    require_layer_types(config, SLIDING if config.sliding_window is not None else FULL)
    return _windows(config, [config.sliding_window is not None] * config.num_hidden_layers)


def _windows(config: Any, is_sliding: Sequence[bool]) -> tuple[int | None, ...]:
    """A window that no sequence outgrows is none: attention without windows is quicker."""
    if not any(is_sliding):
        return ()
    window = config.sliding_window
    if not isinstance(window, int) or window < 1:
        raise wrong_config(f"its sliding_window is {window}")
    if window >= config.max_position_embeddings:
        return ()
    return tuple(window if sliding else None for sliding in is_sliding)


def require_layer_types(config: Any, *known: str) -> None:
    """Refuses what would otherwise be ignored without a word and give wrong answers."""
    if others := set(getattr(config, "layer_types", None) or ()) - set(known):
        raise ModelError(
            f"The model uses {min(others)}, which is not supported; its family may use {', '.join(known)}."
        )


def refuse_quantised(config: Any) -> None:
    """Weights that mean nothing without their scales."""
    if getattr(config, "quantization_config", None):
        raise ModelError(
            "The model's safetensors weights are quantised, which is not supported; "
            "use the unquantised model or a GGUF file."
        )


def refuse_senseless(config: Any) -> None:
    """Numbers that transformers lets pass, and that would fail later without saying why."""
    refuse_quantised(config)
    for name, smallest in SMALLEST.items():
        if getattr(config, name) < smallest:
            raise wrong_config(f"its {name} is {getattr(config, name)}")
    if config.num_hidden_layers > MOST_LAYERS:
        raise wrong_config(f"its num_hidden_layers is {config.num_hidden_layers}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise wrong_config("its attention heads do not divide among its KV heads")
    head_dim = head_dim_of(config)
    if head_dim < 2 or head_dim % 2:
        raise wrong_config(f"its head_dim is {head_dim}, which is not even")
    if not (isfinite(config.rms_norm_eps) and config.rms_norm_eps >= 0):
        raise wrong_config(f"its rms_norm_eps is {config.rms_norm_eps}")


def head_dim_of(config: Any) -> int:
    """Dimensions of a head, which older configs leave to be divided."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
