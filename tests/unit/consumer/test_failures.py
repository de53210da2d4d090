"""The one table of failures."""

from __future__ import annotations

import pytest

from headrace.broker.events import Failed
from headrace.broker.fold import Deaths
from headrace.broker.lines.request import LineError
from headrace.broker.message import Lane
from headrace.consumer import failures
from headrace.consumer.endings import Exit
from headrace.consumer.failures import POLICY, Failure, Kind
from headrace.gpu_engine.api import EngineError


def test_every_kind_has_its_row_in_the_table_and_its_policy() -> None:
    assert failures.__doc__ is not None
    rows = {line.split("|")[1].strip() for line in failures.__doc__.splitlines() if line.startswith("|")}
    assert {kind.name for kind in Kind} <= rows
    assert set(POLICY) == set(Kind)


@pytest.mark.parametrize(
    ("failure", "leaves", "status", "has_terminal"),
    [
        (failures.refused(LineError("invalid_request", "too hot", "temperature")), Exit.DONE, 400, True),
        (failures.refused(LineError("invalid_json", "{", unreadable=True)), Exit.DEAD_LETTER, 400, True),
        (failures.refused(failures.BROKEN_BY_US), Exit.DONE, 500, True),
        (failures.refused_by_engine(EngineError(code="x", message="no"), "prompt"), Exit.DONE, 400, True),
        (
            failures.refused_by_engine(EngineError(code="internal_error", message="NaN"), ""),
            Exit.DONE,
            500,
            True,
        ),
        (
            failures.refused_by_engine(EngineError(code="rate_limit_exceeded", message="full"), ""),
            Exit.DONE,
            429,
            True,
        ),
        (failures.nobody_serves("m", ["a"]), Exit.DONE, 404, True),
        (failures.body_gone("swept"), Exit.DONE, 400, True),
        (failures.overdue(Lane.BATCH, 2000, 1000), Exit.DONE, 429, True),
        (failures.poison(Deaths(3, 3)), Exit.DEAD_LETTER, 500, True),
        (failures.CANCELLED, Exit.DONE, 0, True),
        (failures.EXPIRED, Exit.DONE, 0, True),
        (failures.CONFLICT, Exit.DEAD_LETTER, 0, False),
        (failures.fenced("late"), Exit.DROP, 0, False),
        (failures.transient("away", 5), Exit.RETRY, 0, False),
    ],
)
def test_a_failure_leaves_as_the_table_says(
    failure: Failure, leaves: Exit, status: int, has_terminal: bool
) -> None:
    assert (failure.exit, failure.status, failure.terminal) == (leaves, status, has_terminal)
    failed = Failed(1, failure.code, failure.message, failure.status)
    ending = failure.ending(failed if failure.terminal else None)
    assert (ending.exit, ending.reason) == (leaves, failure.message)
    assert (ending.terminal is not None) is has_terminal


@pytest.mark.parametrize("kind", [Kind.SMALLER, Kind.ENGINE_DIED])
def test_what_is_cured_around_a_request_ends_none(kind: Kind) -> None:
    assert Failure(kind).exit is None
    assert not Failure(kind).terminal
    with pytest.raises(AssertionError):
        Failure(kind).ending()


def test_messages_carry_the_numbers() -> None:
    assert "waited 2.0 s in the lane batch" in failures.overdue(Lane.BATCH, 2000, 1000).message
    assert "may wait 1.0 s" in failures.overdue(Lane.BATCH, 2000, 1000).message
    assert "died 3 times with this request alone" in failures.poison(Deaths(5, 3)).message
    unread = failures.poison(Deaths(5, 3), was_read=False).message
    assert "3 consumers died while they read this request alone, 5 in a row" in unread
    assert "'a', 'b'" in failures.nobody_serves("m", ["a", "b"]).message
