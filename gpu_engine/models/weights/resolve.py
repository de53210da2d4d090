"""From what a user calls a model to the files it consists of. Imports no torch: tokenizers use it too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.gpu_engine.models.errors import ModelError

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
QUANTISATION: Final = re.compile(r"[.-](I?Q\d\w*|B?F16|F32|MXFP4)$", re.IGNORECASE)
ACCEPTED: Final = (
    "a folder with config.json, a .gguf file, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct"
)


def resolve_model(model: str, files: Sequence[str] = HUB_FILES) -> Path:
    """The folder or GGUF file of `model`; of a hub id the `files` are downloaded first. Raises ModelError."""
    if not model:
        raise ModelError(f"No model is given; give {ACCEPTED}.")
    path = Path(model).expanduser()
    if path.is_file():
        return _require_gguf(path)
    if path.is_dir():
        return _require_folder(path)
    if HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return _download(model, files)
    raise ModelError(f"There is no model at {model}; give {ACCEPTED}.")


def model_name(model: str, path: Path) -> str:
    """What to call the model: its hub id, its folder's name, or its file's without the quantisation."""
    if not Path(model).expanduser().exists():
        return model
    return path.resolve().name if path.is_dir() else QUANTISATION.sub("", path.stem)


def _require_gguf(path: Path) -> Path:
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return path
    raise ModelError(f"{path} is not a GGUF file; give {ACCEPTED}.")


def _require_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    hint = f"give the file itself, such as {files[0]}" if files else f"give {ACCEPTED}"
    raise ModelError(f"The folder {path} has no config.json; {hint}.")


def _download(model: str, files: Sequence[str]) -> Path:
    # Here, since the import takes most of a second, and most models are files.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return _require_folder(Path(snapshot_download(model, allow_patterns=list(files))))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        raise ModelError(
            f"The model {model} is not here and could not be downloaded ({reason}); "
            "check its name and the connection, or give a folder or GGUF file."
        ) from error
