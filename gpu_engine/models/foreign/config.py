"""What is read of a transformers config when transformers itself computes the model, and which configs
cannot be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from headrace.gpu_engine.models.errors import ModelError, wrong_config
from headrace.gpu_engine.models.hf_config import FULL, MOST_LAYERS, SLIDING, refuse_quantised

NTK: Final = ("dynamic", "longrope")
"""Scalings by which a longer neighbour in the step would change a sequence's answer."""


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """`windows`: what the config says of each layer's window, empty where it has none."""

    architecture: str
    vocab_size: int
    max_context: int
    windows: tuple[int | None, ...]
    hidden_size: int = 0


def is_known(model_type: object) -> bool:
    """Whether transformers has a decoder of that name."""
    return isinstance(model_type, str) and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def read_foreign(config: Any) -> ForeignConfig:
    """The sizes of a transformers config. Raises ModelError for models that are no plain decoders."""
    refuse_quantised(config)
    text = config.get_text_config()
    kind = config.model_type
    if config.is_encoder_decoder:
        raise ModelError(f"Models of type '{kind}' are encoder-decoders, which are not supported.")
    if others := set(getattr(text, "layer_types", None) or ()) - {FULL, SLIDING}:
        raise ModelError(f"The model uses {min(others)}, which is not supported for type '{kind}'.")
    if _read_size(text, "num_hidden_layers", 1) > MOST_LAYERS:
        raise wrong_config(f"its num_hidden_layers is {text.num_hidden_layers}")
    vocab_size, longest = _read_size(text, "vocab_size", 1), _read_size(text, "max_position_embeddings", 2)
    windows, hidden_size = _read_windows(text), getattr(text, "hidden_size", 0)
    return ForeignConfig(kind, vocab_size, _limit_context(text, longest), windows, hidden_size)


def _read_size(config: Any, name: str, smallest: int) -> int:
    size = getattr(config, name, None)
    if not isinstance(size, int) or size < smallest:
        raise wrong_config(f"its {name} is {size}")
    return size


def _limit_context(config: Any, longest: int) -> int:
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [rope, *(inner for inner in rope.values() if isinstance(inner, dict))]
    scaled = [inner for inner in nested if inner.get("rope_type") in NTK]
    return min([longest, *(inner.get("original_max_position_embeddings") or longest for inner in scaled)])


def _read_windows(config: Any) -> tuple[int | None, ...]:
    """As the families here that have windows write them."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return ()
    kinds = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    return tuple(window if kind == SLIDING else None for kind in kinds)
