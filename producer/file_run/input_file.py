"""IN: opened once and held, so that what is answered is what was surveyed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Self

from headrace.producer.file_run.identity import Survey, survey
from headrace.producer.file_run.options import FileRunError


class InputFile:
    """The open input and its survey."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._state = _state(file)
        self.file = file
        self.survey: Survey = survey(file)
        file.seek(0)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens and surveys IN; FileRunError says what is wrong with it."""
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise FileRunError(f"{path} is a folder; give the file with the requests")
            if not stat.S_ISREG(mode):
                raise FileRunError(f"{path} is no regular file; a run needs one that it can read again")
            file = path.open("rb")
        except FileNotFoundError as error:
            raise FileRunError(f"there is no file {path}") from error
        except OSError as error:
            raise FileRunError(f"cannot read {path}: {error.strerror}") from error
        try:
            return cls(path, file)
        except OSError as error:
            file.close()
            raise FileRunError(f"cannot read {path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def check_unlike(self, output: Path) -> None:
        """Refuses to write the answers over the questions."""
        if output.exists() and os.path.samestat(output.stat(), os.fstat(self.file.fileno())):
            raise FileRunError(f"{output} is the input itself; choose another output file")

    def check_unchanged(self) -> None:
        """Whether the file still is what was surveyed, once all of it has been read."""
        if _state(self.file) != self._state:
            raise FileRunError(
                f"{self._path} was changed while the run read it; delete the output and start again"
            )


def _state(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
