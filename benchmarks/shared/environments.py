"""Environments of others: each peer has packages of its own, installed by uv at the first use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.shared.report import CannotRun

Command: TypeAlias = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Packages:
    """`bare`: installed without what they ask for; `unwanted`: taken out again, since they do harm there;
    `overrides`: what packages must take whatever they ask for; `shown`: whose versions are told."""

    wanted: tuple[str, ...]
    shown: tuple[str, ...]
    bare: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """An environment that was made for another key is made anew."""
        taken = [f"not {name}" for name in self.unwanted]
        return " ".join((*self.wanted, *self.bare, *self.overrides, *taken))


def environment(name: str, packages: Packages, cache: Path) -> Path:
    """The Python of the environment `name`, built at the first use; raises CannotRun."""
    folder = cache / "peers" / name
    python, done = folder / "bin" / "python", folder / ".complete"
    if done.exists() and done.read_text() == packages.key:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run_tool([_uv(), "venv", "--quiet", "--python", sys.executable, folder])
    install: Command = [_uv(), "pip", "install", "--quiet", "--python", python]
    if packages.overrides:
        overrides = folder / "overrides.txt"
        overrides.write_text("\n".join(packages.overrides))
        install = [*install, "--overrides", overrides]
    run_tool([*install, *packages.wanted])
    if packages.bare:
        run_tool([*install, "--no-deps", *packages.bare])
    if packages.unwanted:
        run_tool([_uv(), "pip", "uninstall", "--quiet", "--python", python, *packages.unwanted])
    done.write_text(packages.key)
    return python


def versions(packages: Packages, python: Path) -> str:
    """`celery 5.7.0, kombu 5.7.0`: of what matters."""
    listed = json.loads(run_tool([_uv(), "pip", "list", "--python", python, "--format", "json"]))
    found = {package["name"]: package["version"] for package in listed}
    return ", ".join(f"{name} {found[name]}" for name in packages.shown if name in found)


def run_tool(
    argv: Command,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float = 1800,
) -> str:
    """What the program printed; raises CannotRun with its last words where it fails or takes too long."""
    name = f"`{Path(argv[0]).name} {argv[1]}`"
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_s, check=False, cwd=cwd, env=env
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{name} took more than {limit_s:.0f} s") from None
    except OSError as error:
        raise CannotRun(f"{name} cannot be run: {error}") from error
    if done.returncode != 0:
        raise CannotRun(f"{name} failed: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def _uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise CannotRun("uv is needed to build the peers' environments: `pip install uv`")
    return found
