"""The config.json of a folder in Hugging Face layout. Code that a folder brings is never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.models.foreign.config import is_known, read_foreign
from headrace.gpu_engine.models.hf_config import LIBRARY_ERRORS
from headrace.gpu_engine.models.registry import is_family, read_config, unsupported

CONFIG: Final = "config.json"


def check_config(path: Path) -> None:
    """Raises ModelError where a folder's config cannot be served, before anything large is read."""
    if not path.is_dir():
        return
    if is_family(read_model_type(path)):
        read_folder_config(path)
    else:
        read_foreign(read_hf_config(path))


def read_folder_config(folder: Path) -> ModelConfig:
    """The config of a folder whose family is written out here; raises ModelError for others."""
    config = read_hf_config(folder)
    try:
        return read_config(config)
    except LIBRARY_ERRORS as error:
        raise _wrong(folder, error) from error


def read_model_type(folder: Path) -> object:
    """What the folder says its model is."""
    path = folder / CONFIG
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is no readable JSON ({error}); download it again.") from error
    return values.get("model_type") if isinstance(values, dict) else None


def read_hf_config(folder: Path) -> Any:
    """The folder's config as transformers reads it; raises ModelError where it has no such decoder."""
    model_type = read_model_type(folder)
    if not is_family(model_type) and not is_known(model_type):
        raise unsupported(model_type)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except LIBRARY_ERRORS as error:
        raise _wrong(folder, error) from error


def _wrong(folder: Path, error: Exception) -> ModelError:
    return ModelError(f"{folder / CONFIG} is wrong ({one_line(error)}); check it against the model's own.")
