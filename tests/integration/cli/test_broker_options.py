"""Options of a broker, from the command line and the environment, as a part of its address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.broker_options import parse_options, parse_variable, with_options
from headrace.cli.errors import Mistake
from headrace.cli.options import broker_url
from headrace.cli.settings import for_child, read_environment

NAMES = st.text(st.characters(exclude_characters="=,\\", exclude_categories=["Cs", "Cc", "Z"]), min_size=1)
VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]))


def test_options_stand_in_the_address_behind_what_is_there() -> None:
    assert with_options("kafka://h:9092", {}) == "kafka://h:9092"
    assert with_options("kafka://h:9092", {"a": "1", "b": "x&y=#"}) == "kafka://h:9092?a=1&b=x%26y%3D%23"
    assert with_options("kafka://h/?a=1", {"b": "2"}) == "kafka://h/?a=1&b=2"
    assert with_options("unix:///tmp/a.sock", {"db": "1"}) == "unix:///tmp/a.sock?db=1"


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BROKER", "kafka://h")
    monkeypatch.setenv("HEADRACE_BROKER_OPTIONS", "partitions=3, flush_ms=5")
    url = broker_url(None, ["partitions=4"], read_environment())
    assert url == "kafka://h?partitions=4&flush_ms=5"


def test_a_child_gets_the_options_once_and_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BROKER_OPTIONS", "sasl_plain_password=secret")
    url = broker_url("kafka://h", (), read_environment())
    for name, value in for_child(parent=1, broker=url).items():
        monkeypatch.setenv(name, value)
    assert broker_url(None, (), read_environment()) == "kafka://h?sasl_plain_password=secret"


@given(st.dictionaries(NAMES, VALUES))
def test_any_value_can_be_written_in_the_environment(options: dict[str, str]) -> None:
    escaped = (f"{name}={value}".replace("\\", "\\\\").replace(",", "\\,") for name, value in options.items())
    assert parse_variable(",".join(escaped)) == options


def test_a_password_with_a_backslash_need_not_be_escaped() -> None:
    assert parse_variable("sasl_plain_password=a\\b,partitions=2") == {
        "sasl_plain_password": "a\\b",
        "partitions": "2",
    }


@pytest.mark.parametrize("text", ["password", "=value", " =value"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(Mistake, match="NAME=VALUE"):
        parse_options([text])


def test_a_variable_that_is_no_list_of_options_is_named_without_its_values() -> None:
    with pytest.raises(Mistake, match="HEADRACE_BROKER_OPTIONS") as caught:
        parse_variable("secret")
    assert "secret" not in str(caught.value)
