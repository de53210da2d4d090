"""IN: opened once and held, so that what is answered is what was surveyed."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from headrace.broker.lines.reader import BLANK, FORMAT_BYTES, foreign_format
from headrace.producer.file_run.options import FileRunError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over the input shows. `requests` counts the lines that are not blank."""

    digest: bytes
    physical_lines: int
    requests: int


def survey(file: BinaryIO) -> Survey:
    """Reads the file to its end, in chunks."""
    digest, physical, requests, open_line = hashlib.sha256(), 0, 0, False
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        if physical == requests == 0 and not open_line:
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        first, *others = chunk.split(b"\n")
        open_line = open_line or bool(first.strip(BLANK))
        for piece in others:
            requests += open_line
            open_line = bool(piece.strip(BLANK))
        physical += len(others)
    return Survey(digest.digest(), physical + 1, requests + open_line)


class InputFile:
    """The open input and its survey."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._state = _state(file)
        if strange := foreign_format(file.read(FORMAT_BYTES)):
            raise FileRunError(f"{path} is {strange}")
        file.seek(0)
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
        except BaseException:
            file.close()
            raise

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
