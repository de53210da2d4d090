"""Folders in Hugging Face layout: `model.safetensors`, or shards listed in `model.safetensors.index.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from headrace.gpu_engine.models.errors import ModelError, one_line

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BODY = "model."


class SafetensorsFolder:
    """The tensors of a folder, read one at a time from memory maps. One that was saved without its head, as
    models for embeddings are, lacks the `model.` in front of all names: here they have it."""

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder)
        self.files = list_weight_files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._home: dict[str, tuple[Path, str]] = {}  # the file, and the name there
        for file in self.files:
            self._scan(file)
        if not any(name.startswith(BODY) for name in self.shapes):
            self.shapes = {BODY + name: shape for name, shape in self.shapes.items()}
            self._home = {BODY + name: home for name, home in self._home.items()}

    def read(self, name: str) -> torch.Tensor:
        path, stored = self._home[name]
        with _blaming(path), safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored)
        return tensor

    def read_span(self, name: str, dim: int, span: range) -> torch.Tensor:
        """Of a tensor of one or two dimensions only the indices `span` of dimension `dim`."""
        (path, stored), kept = self._home[name], slice(span.start, span.stop)
        with _blaming(path), safe_open(path, framework="pt") as file:
            tensor = file.get_slice(stored)
            part: torch.Tensor = tensor[kept] if dim == 0 else tensor[:, kept]
        return part

    def _scan(self, path: Path) -> None:
        with _blaming(path), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (a file handle, not a mapping)
                self.shapes[name] = tuple(file.get_slice(name).get_shape())
                self._home[name] = (path, name)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The weights file {path} is missing, damaged or incomplete ({one_line(error)}); "
            "download it again."
        ) from error


def list_weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder, all of which must be there; raises ModelError where none is."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return _list_shards(folder)
    pickled = sorted(file.name for file in folder.glob("*.bin"))
    hint = f"; it holds pickled weights ({pickled[0]}), which are not read for safety" if pickled else ""
    raise ModelError(
        f"The folder {folder} has neither {SINGLE} nor {INDEX}{hint}: download the safetensors files "
        "or give a GGUF file."
    )


def _list_shards(folder: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"The index {folder / INDEX} is damaged; download it again.") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ModelError(
            f"The folder {folder} lacks {missing[0]}, {len(missing)} of {len(names)} weight files in all; "
            "finish the download."
        )
    return [folder / name for name in names]
