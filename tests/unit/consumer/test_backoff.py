"""Pauses between attempts."""

from __future__ import annotations

from headrace.consumer.backoff import Backoff


def test_pauses_grow_from_the_first_to_the_longest_and_are_jittered() -> None:
    backoffs = [Backoff(0.1, 1.0) for _ in range(50)]
    for bound in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        pauses = [backoff.next_s() for backoff in backoffs]
        assert max(pauses) <= bound
        assert max(pauses) > bound / 2
        assert min(pauses) < bound / 2
