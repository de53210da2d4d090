"""Apache Kafka itself: its jars, brought by Maven into a cache folder once for all."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace.broker.embedded.folder import EmbeddedUnusable

POM = Path(__file__).with_name("pom.xml")
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"  # its version is in the pom
_PATIENCE_S = 600.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NO_NETWORK = ("Could not transfer", "Unknown host", "Connection refused", "Connection reset", "timed out")


def jars_folder(cache: Path) -> Path:
    """Where the jars of this pom are, or will be: other versions stand beside them."""
    return cache / f"jars-{hashlib.blake2b(POM.read_bytes(), digest_size=6).hexdigest()}"


def fetch_jars(cache: Path) -> list[Path]:
    """The jars in the order of the class path, fetched where they are not there yet. The folder appears at
    once or not at all. Raises EmbeddedUnusable with the reason, OSError where the cache cannot be written."""
    folder = jars_folder(cache)
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix=".jars-", dir=cache) as made:
            _copy_dependencies(Path(made, "jars"))
            Path(made, "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _copy_dependencies(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise EmbeddedUnusable(
            "the embedded Kafka is fetched by Maven, and there is no mvn here; install it (Debian: maven), "
            "or pass the address of a Kafka that runs"
        )
    command = [maven, "--batch-mode", "--quiet", "--file", str(POM), _GOAL]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedUnusable(
            f"fetching Kafka took over {_PATIENCE_S:.0f} s; look at the network"
        ) from error
    if done.returncode != 0 or not folder.is_dir():
        raise EmbeddedUnusable(_failure(_COLOUR.sub("", done.stdout.decode(errors="replace"))))


def _failure(output: str) -> str:
    errors = [line for line in output.splitlines() if "ERROR" in line] or [
        output.strip() or "it said nothing"
    ]
    reason = errors[0].replace("[ERROR]", "").strip()[:500]
    if any(sign in output for sign in _NO_NETWORK):
        return f"Kafka could not be fetched; Maven needs the network, or a mirror in settings.xml: {reason}"
    return f"Kafka could not be fetched by Maven: {reason}"
