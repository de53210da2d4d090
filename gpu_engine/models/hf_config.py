"""From a transformers config object to ours, for what all families share."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from huggingface_hub.errors import StrictDataclassError

from headrace.gpu_engine.models.config import ModelConfig, RopeConfig
from headrace.gpu_engine.models.errors import ModelError

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

ROPE_KINDS: Final = ("default", "linear", "llama3")

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
    """The fields that all decoders of the Llama kind have; `family` adds those that differ. `config` is a
    transformers config, whose classes know the defaults that a config.json leaves out."""
    _refuse_unsupported(config)
    _refuse_senseless(config)
    return ModelConfig(
        architecture=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        max_context=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope=_read_rope(config.rope_parameters),
        tied_embeddings=bool(config.tie_word_embeddings),
        **family,
    )


def _read_rope(parameters: dict[str, Any]) -> RopeConfig:
    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_KINDS:
        raise ModelError(
            f"The model scales its rotary embeddings by '{kind}', which is not supported; "
            f"supported are {', '.join(ROPE_KINDS)}."
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("The model rotates only a part of each head, which is not supported.")
    optional = {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context",
    }
    given = {ours: parameters[theirs] for theirs, ours in optional.items() if theirs in parameters}
    rope = RopeConfig(theta=parameters["rope_theta"], kind=kind, **given)
    if not all(isfinite(x) and x > 0 for x in (rope.theta, *given.values())):
        raise _wrong(f"its rotary parameters are {parameters}")
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise _wrong("its low_freq_factor is not below its high_freq_factor")
    return rope


def _refuse_unsupported(config: Any) -> None:
    """What would otherwise be ignored without a word and give wrong answers."""
    if getattr(config, "quantization_config", None):
        raise ModelError(
            "The model's safetensors weights are quantised, which is not supported; "
            "use the unquantised model or a GGUF file."
        )
    if config.hidden_act not in ("silu", "swish"):
        raise ModelError(f"The model's activation '{config.hidden_act}' is not supported; supported is silu.")
    if others := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        raise ModelError(f"The model uses {min(others)}, which is not supported; only full_attention is.")


def _refuse_senseless(config: Any) -> None:
    """Numbers that transformers lets pass, and that would fail later without saying why."""
    for name, smallest in SMALLEST.items():
        if getattr(config, name) < smallest:
            raise _wrong(f"its {name} is {getattr(config, name)}")
    if config.num_hidden_layers > MOST_LAYERS:
        raise _wrong(f"its num_hidden_layers is {config.num_hidden_layers}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise _wrong("its attention heads do not divide among its KV heads")
    head_dim = _head_dim(config)
    if head_dim < 2 or head_dim % 2:
        raise _wrong(f"its head_dim is {head_dim}, which is not even")
    if not (isfinite(config.rms_norm_eps) and config.rms_norm_eps >= 0):
        raise _wrong(f"its rms_norm_eps is {config.rms_norm_eps}")


def _wrong(what: str) -> ModelError:
    return ModelError(f"The model's config is wrong: {what}; check it against the model's own.")


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
