"""Every option that takes a number has a highest one: what is beyond it reaches no service and no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.broker.errors import BrokerError
from headrace.broker.kafka.address import parse_address
from headrace.broker.redis_streams.settings import Retention
from headrace.cli.ages import parse_age
from headrace.cli.app import build_app, execute
from headrace.cli.errors import Mistake
from headrace.cli.plan import parse_size

BEYOND = {float: ("inf", "nan", "1e18"), int: ("9" * 30,)}
MOST_DIGITS = 4300  # that Python makes a number of


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    root: Any = get_command(build_app())
    for name, command in root.commands.items():
        for inner, each in getattr(command, "commands", {"": command}).items():
            yield tuple(filter(None, (name, inner))), each


def rows() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """A whole command line but for the number, the option, and the number."""
    for words, command in commands():
        required = [word for each in command.params if each.required for word in fill(each)]
        for each in command.params:
            for value in BEYOND.get(each.type_descriptor.annotation, ()):
                option = max(each.opts, key=len)
                yield (*words, *(word for word in required if word != option)), option, value


def fill(parameter: Any) -> tuple[str, ...]:
    value = "1GB" if parameter.name == "gpu_memory" else "x"
    if parameter.param_type_name == "argument":
        return (value,)
    return () if parameter.type_descriptor.annotation in BEYOND else (parameter.opts[0], value)


ROWS = list(rows())


def test_there_are_many_of_them() -> None:
    assert len({(words, option) for words, option, _ in ROWS}) > 100
    assert {option for _, option, _ in ROWS} >= {"--lease", "--sim-step-ms", "--limit", "--queue-timeout"}


@pytest.mark.parametrize("words", sorted({words[0] for words, _, _ in ROWS}))
def test_a_number_beyond_all_sense_is_a_sentence_that_names_its_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for line, option, value in ROWS:
        if line[0] != words:
            continue
        assert execute([*line, option, value]) == 2, (line, option, value)
        [said] = capsys.readouterr().err.strip().splitlines()
        assert option in said, (line, value)
        assert "should be" in said, (line, value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        *("partitions", "replication", "max_message_bytes", "log_ms", "results_ms", "reply_ms"),
        *("reader_margin_ms", "read_partitions", "ring_bytes"),
    ],
)
def test_a_number_of_an_address_has_a_highest_one_too(name: str) -> None:
    for value in ("9" * 18, "9" * 30, "9" * (MOST_DIGITS + 1), "inf", "٣"):
        with pytest.raises(BrokerError, match=rf"{name}=.* must be a whole number from \d+ to \d+$"):
            parse_address(f"kafka://h:1?{name}={value}")


@pytest.mark.parametrize("broker", ["redis", "kafka"])
def test_a_wrong_option_of_a_broker_of_our_own_is_told_before_it_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, broker: str
) -> None:
    option = {"redis": "db=99999999999", "kafka": "partitions=0"}[broker]
    command = ["up", "--engine", "sim", "--data-dir", str(tmp_path / "d"), "--broker", broker]
    assert execute([*command, "--broker-option", option]) == 2
    [said] = capsys.readouterr().err.strip().splitlines()
    assert option in said
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("ms", [0, -1, LONGEST_KEPT_S * 1000 + 1, 10**21])
def test_a_time_that_the_servers_commands_would_refuse_is_no_retention(ms: int) -> None:
    for name in ("log_ms", "results_ms", "reply_ms"):
        with pytest.raises(BrokerError, match=f"{name} must be above 0 and at most"):
            Retention(**{name: ms})


def test_an_age_and_a_size_have_a_highest_one() -> None:
    assert parse_age("3650d") == LONGEST_KEPT_S * 1000
    for text in ("3651d", "9" * 400 + "s"):
        with pytest.raises(Mistake, match="is too long ago; an age is at most 3650d"):
            parse_age(text)
    with pytest.raises(Mistake, match="takes a number and a unit"):
        parse_size("9" * 400 + "GiB")
