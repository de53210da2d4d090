"""The mark beside OUT, `OUT.run`: which run is under way. It stands from before the first publish until
the run is complete, so that a run killed before its first result line finds its own requests again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace.producer.file_run.identity import is_run
from headrace.producer.file_run.output_file import sync_folder, write_error


def mark_path(output: Path) -> Path:
    return output.with_name(output.name + ".run")


def read_mark(output: Path) -> str | None:
    """The run that was begun, or None where there is no mark, or none that can be read."""
    try:
        run = json.loads(mark_path(output).read_bytes())["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run if is_run(run) else None


def write_mark(output: Path, run: str) -> None:
    """Sets the mark, durably; FileRunError where it cannot be written."""
    path = mark_path(output)
    scratch = path.with_name(path.name + ".new")
    try:
        with scratch.open("w") as file:
            json.dump({"run": run}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        sync_folder(path)
    except OSError as error:
        raise write_error(path, error) from error


def remove_mark(output: Path) -> None:
    mark_path(output).unlink(missing_ok=True)
