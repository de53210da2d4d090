"""`headrace run` is killed at random instants and started again: the same answers, each line once."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.answers import expected_text
from tests.support.children import bound_to_us, kept

LINES, KILLS = 150, 8
HEADRACE = Path(sys.executable).parent / "headrace"


def write_input(path: Path) -> dict[str, str]:
    """LINES requests and three lines that are none; returns the expected answer by custom_id."""
    expected, lines = {}, []
    for n in range(LINES):
        custom_id, tokens = f"line-{n}", 10 + n % 60
        body = {"prompt": custom_id, "max_tokens": tokens, "seed": n, "ignore_eos": True}
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line))
        expected[custom_id] = expected_text(custom_id, tokens, n)
    lines[50:50] = ["{not json", "[]", '{"custom_id": "no-body"}']
    path.write_text("\n".join(lines) + "\n")
    return expected


def start_run(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    sim = ("--engine", "sim", "--sim-first-token-ms", "20", "--sim-step-ms", "10")
    with log.open("ab") as stream:
        command: list[str | Path] = [HEADRACE, "run", "in.jsonl", "-o", "out.jsonl", *sim]
        env = bound_to_us()
        return kept(lambda: subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream, env=env))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_killed_again_and_again_ends_with_each_line_answered_once(tmp_path: Path) -> None:
    seed = time.time_ns()
    rng, log, killed = random.Random(seed), tmp_path / "run.log", 0
    expected = write_input(tmp_path / "in.jsonl")
    while True:
        process = start_run(tmp_path, log)
        if killed < KILLS:
            time.sleep(rng.uniform(1.0, 4.0))  # from before the broker is up to amid the answers
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
        status = process.wait(120)
        if status != -signal.SIGKILL:
            break
    assert status == 1, f"seed {seed}: three lines are invalid, so 1 was due, not {status}: {log.read_text()}"
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["text"]
        for line in lines
        if line["response"] and line["response"]["status_code"] == 200
    }
    assert killed > 0
    assert len(lines) == LINES + 3, f"seed {seed}"
    assert answers == expected, f"seed {seed}"
