"""From a model's name to its tokenizer."""

from __future__ import annotations

from headrace.gpu_engine.models.weights.resolve import resolve_model
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.sim import SimTokenizer


def load_tokenizer(model: str, engine: str = "torch") -> Tokenizer:
    """The tokenizer of `model`: a folder in Hugging Face layout, a GGUF file or a hub id. The engine `sim`
    has its own, whatever the model. Several threads may use it at once. Loading takes seconds, as transformers
    is imported.

    Raises ModelError (`gpu_engine.models.errors`) with one sentence where there is no such model or its
    tokenizer cannot be read.
    """
    if engine == "sim":
        return SimTokenizer()
    # Imported here, so that a simulated pipeline does not wait for transformers.
    from headrace.gpu_engine.text.hf import load_hf_tokenizer

    return load_hf_tokenizer(resolve_model(model))
