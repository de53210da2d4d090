from __future__ import annotations

import pytest

from headrace.broker.events import Delta, Event, Failed, Finished, Handed, Moved, Started
from headrace.broker.kafka.beginnings import is_beginning, is_cut


def started(kept: int = 0, delivery: str = "here") -> Started:
    return Started(1, "me", delivery, 7, b"hash", "model", kept)


def delta(seq: int) -> Delta:
    return Delta(1, seq, (1,), "a")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], None),
        ([started()], None),
        ([started(), Handed(1), started()], None),
        ([started(), delta(0)], True),
        ([started(), delta(3)], False),  # it was begun anew
        ([started(3)], False),
        ([started(delivery="there"), delta(0)], False),
        ([delta(0)], True),
        ([delta(3)], False),
        ([Failed(1, "expired", "too late")], False),
        ([started(), Failed(1, "invalid", "no such parameter")], True),  # what it does not keep is gone
        ([started(), Finished(1, "stop")], True),
        ([started(), Handed(1), Moved(1, "gpu", "gpu.batch/0")], True),
    ],
)
def test_only_the_first_delta_proves_that_a_log_begins_here(events: list[Event], told: bool | None) -> None:
    assert is_beginning(events, "here") is told


@pytest.mark.parametrize(
    ("events", "cut"),
    [
        ([], False),
        ([started()], False),
        ([started(), delta(0)], False),
        ([started(), Handed(1), started(), delta(3)], True),
        ([started(3)], True),
        ([delta(3)], True),
        ([Failed(1, "expired", "too late")], False),
        ([started(), Failed(1, "expired", "too late"), delta(3)], False),
    ],
)
def test_only_tokens_that_are_missing_prove_that_a_log_begins_elsewhere(
    events: list[Event], cut: bool
) -> None:
    assert is_cut(events) is cut
