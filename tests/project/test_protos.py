"""The contracts are clean, and the committed code is what they generate."""

import os
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).parents[2] / "protos"
BIN = Path(sys.executable).parent


def test_protos_are_clean_under_buf_lint() -> None:
    result = subprocess.run([BIN / "buf", "lint", PROTOS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([PROTOS / "generate.sh", tmp_path], env=env, check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "headrace/v1").iterdir()}
    assert made
    for name, text in made.items():
        assert (PROTOS / "headrace/v1" / name).read_text() == text, f"{name} differs: run `make protos`"
