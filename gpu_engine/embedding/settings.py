"""How a model wants its vectors made, as folders in the layout of sentence-transformers say.

modules.json             [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}, …]
1_Pooling/config.json    {"pooling_mode_mean_tokens": true, …}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.pooling import PoolerMaker, PoolingKind
from headrace.gpu_engine.models.errors import ModelError

MODULES: Final = "modules.json"
POOLING: Final = Path("1_Pooling") / "config.json"
KNOWN_MODULES: Final = ("Transformer", "Pooling", "Normalize")
MODES: Final[dict[str, PoolingKind]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def pooler_maker(config: EngineConfig, path: Path, size: int) -> PoolerMaker:
    """By the config, or else by what the folder at `path` says, or else the last token, which alone has seen
    the whole text. Raises ModelError where the folder asks for what there is not."""
    kind = _read_kind(path) if config.pooling == "auto" else config.pooling
    return PoolerMaker(kind, config.normalize, size)


def _read_kind(path: Path) -> PoolingKind:
    if not path.is_dir():
        return "last"
    _refuse_other_modules(path / MODULES)
    file = path / POOLING
    if not file.is_file():
        return "last"
    asked = [name for name, value in _read_object(file).items() if name.startswith("pooling_mode_") and value]
    if len(asked) == 1 and asked[0] in MODES:
        return MODES[asked[0]]
    raise ModelError(
        f"{file} asks for {' and '.join(asked) or 'no pooling'}, which is not supported; "
        "set pooling to mean or last."
    )


def _refuse_other_modules(file: Path) -> None:
    if not file.is_file():
        return
    modules = _read(file)
    types = (
        [str(one.get("type")) for one in modules if isinstance(one, dict)]
        if isinstance(modules, list)
        else []
    )
    others = [name for name in (each.rpartition(".")[2] for each in types) if name not in KNOWN_MODULES]
    if others:
        raise ModelError(
            f"{file} has a module {others[0]}, which is not supported; set pooling to mean or last, and "
            "vectors are made without it."
        )


def _read_object(file: Path) -> dict[str, Any]:
    value = _read(file)
    return value if isinstance(value, dict) else {}


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is no readable JSON ({error}); download it again.") from error
