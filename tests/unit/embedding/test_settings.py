"""How vectors are made is for the config to say, then for the model's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.pooling import PoolerMaker
from headrace.gpu_engine.embedding.settings import pooler_maker
from headrace.gpu_engine.models.errors import ModelError


def folder_of(path: Path, *modules: str, **modes: bool) -> Path:
    """A folder as sentence-transformers saves it."""
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    types = [
        {"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", *modules)
    ]
    (path / "modules.json").write_text(json.dumps(types))
    return path


@pytest.mark.parametrize(
    ("modes", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
    ],
)
def test_a_folder_says_how(tmp_path: Path, modes: dict[str, bool], kind: str) -> None:
    made = pooler_maker(EngineConfig(), folder_of(tmp_path, "Normalize", **modes), 64)
    assert (made.kind, made.normalize, made.size) == (kind, True, 64)


def test_a_folder_that_says_nothing_and_a_file_mean_the_last_token(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    for path in (tmp_path, tmp_path / "model.gguf"):
        assert pooler_maker(EngineConfig(), path, 8) == PoolerMaker("last", True, 8)


def test_the_config_has_the_last_word(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "Dense", pooling_mode_cls_token=True)
    config = EngineConfig(pooling="mean", normalize=False)
    assert pooler_maker(config, folder, 8) == PoolerMaker("mean", False, 8)


@pytest.mark.parametrize(
    ("modules", "modes", "says"),
    [
        ((), {"pooling_mode_cls_token": True}, "asks for pooling_mode_cls_token"),
        ((), {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "mean_tokens and pooling"),
        ((), {}, "asks for no pooling"),
        (("Dense",), {"pooling_mode_mean_tokens": True}, "has a module Dense"),
    ],
)
def test_what_there_is_not_is_refused_by_name(
    tmp_path: Path, modules: tuple[str, ...], modes: dict[str, bool], says: str
) -> None:
    with pytest.raises(ModelError, match=f"{says}.*set pooling to mean or last"):
        pooler_maker(EngineConfig(), folder_of(tmp_path, *modules, **modes), 64)


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling_mode_mean_tokens=True)
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="no readable JSON"):
        pooler_maker(EngineConfig(), folder, 64)
