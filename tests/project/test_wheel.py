"""A wheel built from the sdist works in an empty environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_from_the_sdist_answers_a_file_in_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(UV, "pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", wheel)
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    }
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    headrace = tmp_path / "venv/bin/headrace"
    assert "0.1.0" in run(headrace, "--version", cwd=tmp_path)
    run(headrace, "run", "in.jsonl", "-o", "out.jsonl", "--engine", "sim", cwd=tmp_path)
    (answer,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(answer)["response"]["status_code"] == 200
