"""From a transformers config object to ours, for what all families share."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig, RopeConfig
from headrace.gpu_engine.models.errors import ModelError

ROPE_KINDS = ("default", "linear", "llama3")


def read_decoder(config: Any, **family: Any) -> ModelConfig:
    """The fields that all decoders of the Llama kind have; `family` adds those that differ. `config` is a
    transformers config, whose classes know the defaults that a config.json leaves out."""
    _refuse_unsupported(config)
    return ModelConfig(
        architecture=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
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
    return RopeConfig(theta=parameters["rope_theta"], kind=kind, **given)


def _refuse_unsupported(config: Any) -> None:
    """What would otherwise be ignored without a word and give wrong answers."""
    if getattr(config, "quantization_config", None):
        raise ModelError(
            "The model's safetensors weights are quantised, which is not supported; "
            "use the unquantised model or a GGUF file."
        )
    if config.hidden_act not in ("silu", "swish"):
        raise ModelError(f"The model's activation '{config.hidden_act}' is not supported; supported is silu.")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise ModelError("The model uses sliding-window attention, which is not supported yet.")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ModelError("The model's config is wrong: its attention heads do not divide among its KV heads.")
