"""What earlier owners left in a log, and what is held against a request for it."""

from __future__ import annotations

import pytest
from msgspec import structs

from headrace.broker.events import Event, Handed, Started
from headrace.broker.fold import Deaths, Fold
from headrace.consumer.past import Past
from headrace.consumer.suspicion import Suspicion

BEGUN = Started(1, "c", "d", 7, b"body", "model")
MARK = structs.replace(BEGUN, fingerprint="")


def past(*log: Event) -> Past:
    state = Fold()
    for event in log:
        assert state.read(event)
    return Past(state, b"body")


def test_tokens_go_on_for_the_same_body_and_the_same_model_only() -> None:
    assert past(BEGUN).resumable(["other", "model"])
    assert not past(BEGUN).resumable(["other"])
    assert not past(structs.replace(BEGUN, body_hash=b"another")).resumable(["model"])
    assert not past().resumable(["model"])


def test_a_mark_says_who_had_it_and_not_that_it_was_read() -> None:
    assert [(one.has_begun, one.was_read) for one in (past(), past(MARK), past(BEGUN))] == [
        (False, False),
        (True, False),
        (True, True),
    ]


@pytest.mark.parametrize(
    ("log", "epoch", "redelivered", "expected"),
    [
        ([], 1, True, False),
        ([], 2, False, False),
        ([], 2, True, True),
        ([Handed(1, "busy")], 2, True, False),
        ([Handed(1, "busy")], 3, True, True),  # one more had it since
        ([MARK], 2, False, True),
        ([BEGUN], 2, False, False),
    ],
)
def test_the_owner_before_may_have_died_of_what_it_did_not_hand_on(
    log: list[Event], epoch: int, redelivered: bool, expected: bool
) -> None:
    assert past(*log).may_have_killed(epoch, redelivered=redelivered) is expected


def test_only_deaths_without_a_token_since_it_was_placed_are_held_against_it() -> None:
    held = Suspicion(Deaths(1, 0), doubtful=False)
    held.placed(5)
    held.engine_died(alone=True)
    assert held.deaths == Deaths(2, 1)
    held.placed(5)
    assert [held.brought_token(), held.brought_token()] == [True, False]
    held.engine_died(alone=True)
    assert held.deaths == Deaths()
    held.placed(6)
    held.engine_died(alone=False)
    assert held.deaths == Deaths(1, 0), "the next placing begins anew"


def test_a_token_proves_it_innocent_once_it_stands_in_the_log() -> None:
    held = Suspicion(Deaths(), doubtful=False)
    held.placed(5)
    held.brought_token()
    assert [held.proved_innocent(num_logged) for num_logged in (5, 6)] == [False, True]
