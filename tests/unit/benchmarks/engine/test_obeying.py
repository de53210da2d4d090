"""The lines between the benchmark and a contestant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.engine_bench.workload import draw_workload

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
from benchmarks.engine_bench.peers.obeying import obey, parser

def load(options):
    print("a library greets")
    def answer(rows):
        print(f"slots {options.slots}")
        return sum(row.tokens for row in rows) - (MISSING if len(rows) > 1 else 0)
    return answer

obey(parser().parse_args(), load)
"""


def converse(tmp_path: Path, lines: list[str], missing: int = 0) -> subprocess.CompletedProcess[str]:
    file = draw_workload(count=10).write(tmp_path / "workload.json")
    argv = [sys.executable, "-c", f"MISSING = {missing}\n{SCRIPT}", "model", str(file), "--slots", "4"]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(argv, input=text, capture_output=True, text=True, cwd=ROOT, check=False)


def test_each_line_is_answered_with_seconds_and_tokens(tmp_path: Path) -> None:
    done = converse(tmp_path, ["warm", "batch", "single 7"])
    ready, warm, batch, single = map(json.loads, done.stdout.splitlines())
    rows = draw_workload(count=10).rows
    assert ready == {"ready": True}
    assert warm["tokens"] == sum(min(8, row.tokens) for row in rows[:8])
    assert batch["tokens"] == sum(row.tokens for row in rows)
    assert single["tokens"] == 7
    assert min(warm["seconds"], batch["seconds"], single["seconds"]) >= 0


def test_what_libraries_print_is_no_answer(tmp_path: Path) -> None:
    done = converse(tmp_path, ["single 1"])
    assert len(done.stdout.splitlines()) == 2
    assert "a library greets" in done.stderr
    assert "slots 4" in done.stderr


def test_who_makes_too_few_tokens_is_not_fast_but_out(tmp_path: Path) -> None:
    done = converse(tmp_path, ["batch"], missing=1)
    assert done.returncode != 0
    assert "tokens instead of" in done.stderr
