"""Small JSON files by which a process says that it is ready, and what it is.

Written in one atomic step, so that a reader sees the old content or the new, never half of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.cli.errors import Mistake


def check_place(path: Path | None) -> None:
    """Raises Mistake now, where the file could not be written once all is up."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise Mistake(f"the ready file {path} cannot be written; name a file in a folder that can")


def write_ready(path: Path, content: dict[str, Any]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content) + "\n")
    scratch.replace(path)


def read_ready(path: Path) -> dict[str, Any] | None:
    """The content, or None where there is no such file yet."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return content


def remove_ready(path: Path | None) -> None:
    """Takes back what was said; nothing to do without a path or a file."""
    if path is not None:
        path.unlink(missing_ok=True)
