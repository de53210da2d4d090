"""`headrace run`: every line answered once, however often it is stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.integration.cli.conftest import PATIENCE_S, Spawn, eventually, read_lines, write_input

pytestmark = pytest.mark.slow

# Slow enough to be stopped half-way: two at a time, about 0.1 s each.
SLOW_SIM = ("--engine", "sim", "--sim-first-token-ms", "5", "--sim-step-ms", "12", "--max-batch-size", "2")
LINES = 60


def answers(out: Path) -> dict[str, Any]:
    """Texts by custom_id; fails where a line stands twice."""
    lines = read_lines(out)
    by_id = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"] for line in lines}
    assert len(by_id) == len(lines)
    return by_id


def line_count(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def test_a_run_that_is_killed_and_interrupted_goes_on_to_the_same_answers(
    spawn: Spawn, tmp_path: Path
) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    command = ("run", input_file, "-o", out, *SLOW_SIM)

    first = spawn(*command)
    eventually(lambda: line_count(out) >= 5, "the first answers")
    first.kill()
    first.communicate()
    assert 0 < line_count(out) < LINES

    second = spawn(*command)
    before = line_count(out)
    eventually(lambda: line_count(out) >= before + 5, "more answers")
    second.send_signal(signal.SIGINT)
    _, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 130, errors
    assert line_count(out) < LINES

    third = spawn(*command)
    _, errors = third.communicate(timeout=PATIENCE_S)
    assert third.returncode == 0, errors
    assert f"{LINES} answered, 0 failed" in errors

    whole = spawn("run", input_file, "-o", tmp_path / "whole.jsonl", *SLOW_SIM[:-2])
    whole.communicate(timeout=PATIENCE_S)
    assert answers(out) == answers(tmp_path / "whole.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "whole.jsonl"]


def test_lines_that_fail_are_told_by_the_exit_status(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    with input_file.open("a") as file:
        file.write('{"custom_id": "bad", "method": "POST", "url": "/v1/fly", "body": {}}\n')
    process = spawn("run", input_file, "-o", out, *SLOW_SIM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert "3 answered, 1 failed" in errors
    assert len(read_lines(out)) == 4


def test_requests_may_call_the_model_by_any_of_its_served_names(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = ("gpt-4o-mini", "our-model", "no-such-model")
    bodies = [{"model": name, "prompt": "Hello", "max_tokens": 4} for name in names]
    lines = [
        {"custom_id": body["model"], "method": "POST", "url": "/v1/completions", "body": body}
        for body in bodies
    ]
    input_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    aliases = ("--served-model-name", "our-model", "--served-model-name", "gpt-4o-mini")
    process = spawn("run", input_file, "-o", out, *SLOW_SIM, *aliases)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    answered = {line["custom_id"]: line["response"] for line in read_lines(out)}
    assert [answered[name]["status_code"] for name in names] == [200, 200, 404]
    assert answered["gpt-4o-mini"]["body"]["model"] == "our-model"


def test_large_lines_go_by_the_blob_store_to_the_consumers_of_a_broker(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    prompt = "so " * 2_000
    with input_file.open("a") as file:
        line = {"custom_id": "large", "method": "POST", "url": "/v1/completions"}
        file.write(json.dumps({**line, "body": {"prompt": prompt, "max_tokens": 4}}) + "\n")
    with EmbeddedValkey(tmp_path / "broker") as server:
        where = ("--broker", server.url, "--blobs", tmp_path / "blobs")
        spawn("consumer", *where, *SLOW_SIM)
        process = spawn("run", input_file, "-o", out, *where, "--blob-threshold", "1000", *SLOW_SIM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert sorted(line["custom_id"] for line in read_lines(out)) == ["large", "line-0", "line-1"]
    [blob] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert prompt in blob.read_text()


def test_a_run_with_an_own_broker_gives_its_consumer_the_store(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    store = ("--blobs", tmp_path / "blobs", "--blob-threshold", "0")
    process = spawn("run", input_file, "-o", out, *store, *SLOW_SIM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert list((tmp_path / "blobs").rglob("*"))


def test_a_run_whose_model_is_missing_leaves_nothing_behind(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    process = spawn("run", input_file, "-o", out, "--model", tmp_path / "no-such-model")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "no-such-model" in errors.strip().splitlines()[-1]
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [input_file]


def test_two_runs_into_one_output_are_refused(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    spawn("run", input_file, "-o", out, *SLOW_SIM)
    eventually((tmp_path / "out.jsonl.headrace" / "broker").exists, "the first run to begin")
    second = spawn("run", input_file, "-o", out, *SLOW_SIM)
    _, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 2
    assert "another run" in errors


def test_a_broker_that_cannot_come_back_is_started_until_it_can(spawn: Spawn, tmp_path: Path) -> None:
    input_file, out = write_input(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    process = spawn("run", input_file, "-o", out, *SLOW_SIM)
    eventually(lambda: line_count(out) >= 2, "the first answers")
    folder = tmp_path / "out.jsonl.headrace" / "broker"
    pid = int((folder / "valkey.lock").read_text())
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file is in the way, as a full disk might be")
    os.kill(pid, signal.SIGKILL)
    log = folder.parent / "log"
    eventually(lambda: log.read_text().count("starting it again") >= 2, "a try that failed")
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
