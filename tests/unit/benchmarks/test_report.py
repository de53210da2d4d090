from __future__ import annotations

import io
import json

from rich.console import Console

from benchmarks.shared.report import Row, Target, Verdict, as_json, missing, number, show

SPEED = Row("noop", "ours", 2500.0, "requests/s", Target("at least", 2000))
SLOW = Row("latency", "p99", 15.2, "ms", Target("at most", 15))
UNBOUND = Row("noop", "CPU", 0.2, "s")
ABSENT = missing("noop", "a peer", "it is not installed")


def test_a_value_on_the_right_side_of_its_bound_is_met() -> None:
    assert SPEED.verdict is Verdict.MET
    assert Row("x", "y", 15.0, "ms", Target("at most", 15)).verdict is Verdict.MET


def test_a_value_beyond_its_bound_is_missed() -> None:
    assert SLOW.verdict is Verdict.MISSED
    assert Row("x", "y", 1.99, "×", Target("at least", 2)).verdict is Verdict.MISSED


def test_a_value_without_a_target_is_only_told() -> None:
    assert UNBOUND.verdict is Verdict.NO_TARGET


def test_what_could_not_be_measured_is_neither_met_nor_missed() -> None:
    assert ABSENT.verdict is Verdict.NOT_RUN


def test_a_reason_without_words_is_named_by_its_kind() -> None:
    assert missing("noop", "ours", TimeoutError()).note == "TimeoutError"


def test_numbers_show_three_digits_that_matter() -> None:
    assert [number(value) for value in (12345.6, 883.4, 15.25, 1.987, 0.0, 3.0, 0.031)] == [
        *("12,346", "883", "15.2", "1.99", "0", "3", "0.03"),
    ]


def test_the_table_holds_header_values_targets_and_reasons() -> None:
    text = io.StringIO()
    show([SPEED, SLOW, ABSENT], {"processor": "a fast one"}, Console(file=text, width=160))
    for part in ("processor: a fast one", "2,500 requests/s", "≥ 2,000", "missed", "it is not installed"):
        assert part in text.getvalue()


def test_the_json_says_the_same() -> None:
    told = json.loads(as_json([SPEED, ABSENT], {"processor": "a fast one"}))
    assert told["machine"] == {"processor": "a fast one"}
    assert [(row["value"], row["verdict"]) for row in told["rows"]] == [(2500.0, "met"), (None, "not run")]
    assert told["rows"][0]["target"] == {"side": "at least", "bound": 2000}
