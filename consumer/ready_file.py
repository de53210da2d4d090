"""The ready file: tells scripts that a consumer is up, and its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_ready_file(path: Path, *, engine_pid: int, model: str) -> None:
    """Writes `{"consumer": pid, "engine": pid, "model": name}`; readers see all of it or nothing."""
    text = json.dumps({"consumer": os.getpid(), "engine": engine_pid, "model": model})
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text + "\n")
    scratch.replace(path)
