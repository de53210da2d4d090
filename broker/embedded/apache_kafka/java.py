"""The Java that runs the embedded Kafka."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.embedded.folder import EmbeddedUnusable

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """`build` tells one build from any other: an archive of classes fits only the one that made it."""

    program: Path
    build: str


def find_java(program: Path | None = None) -> Java:
    """The Java at `program`, or the one that the shell would find. Raises EmbeddedUnusable where there is
    none, or one that is too old for Kafka."""
    found = shutil.which(program or "java")
    if found is None:
        raise EmbeddedUnusable(
            f"the embedded Kafka needs Java {OLDEST} or newer, and there is no {program or 'java'} here; "
            "install it (Debian: openjdk-17-jre-headless), or pass the address of a Kafka that runs"
        )
    told = _version_text(found)
    version = _VERSION.search(told)
    if version is None:
        raise EmbeddedUnusable(f"{found} is no Java that works: {_first_line(told)}")
    if int(version[1]) < OLDEST:
        raise EmbeddedUnusable(
            f"the embedded Kafka needs Java {OLDEST} or newer, and {found} is Java {version[1]}; "
            "install a newer one, or pass the address of a Kafka that runs"
        )
    return Java(Path(found).absolute(), hashlib.blake2b(told.encode(), digest_size=6).hexdigest())


def _version_text(program: str) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr + done.stdout).decode(errors="replace")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0] or "it said nothing"
