"""From a model's name to its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.gpu_engine.models.weights.resolve import resolve_model
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.sim import SimTokenizer
from headrace.gpu_engine.text.tools.formats import FORMATS

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def load_tokenizer(
    model: str, engine: str = "torch", load_format: str = "auto", tool_call_format: str = "auto"
) -> Tokenizer:
    """The tokenizer of `model`: a folder in Hugging Face layout, a GGUF file or a hub id. Several threads may
    use it at once. Loading takes seconds, because transformers is imported.

    The engine `sim` has its own, whatever the model; it also serves a model with random weights
    (`load_format` `dummy`) whose folder holds no tokenizer. `tool_call_format`: see `EngineConfig`.

    Raises ModelError (`gpu_engine.models.errors`) with one sentence where there is no such model or its
    tokenizer cannot be read.
    """
    if engine == "sim":
        return SimTokenizer()
    path = resolve_model(model)
    if load_format == "dummy" and not _has_tokenizer(path):
        return SimTokenizer()
    # Imported here, so that a simulated pipeline does not wait for transformers.
    from headrace.gpu_engine.text.hf import load_hf_tokenizer

    return load_hf_tokenizer(path, FORMATS.get(tool_call_format))


def _has_tokenizer(path: Path) -> bool:
    return path.is_file() or any((path / name).is_file() for name in TOKENIZER_FILES)
