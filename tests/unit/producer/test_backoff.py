from __future__ import annotations

from headrace.producer.backoff import Backoff, RetryPolicy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def longest(low: float, high: float) -> float:
    return high


def test_the_bound_doubles_up_to_the_longest_wait() -> None:
    backoff = Backoff(RetryPolicy(1, 5, 100), Clock(), longest)
    assert [backoff.next_wait() for _ in range(5)] == [1, 2, 4, 5, 5]


def test_the_jitter_is_full() -> None:
    assert Backoff(RetryPolicy(1, 5, 100), Clock(), lambda low, high: low).next_wait() == 0


def test_progress_starts_the_waits_anew() -> None:
    backoff = Backoff(RetryPolicy(1, 5, 100), Clock(), longest)
    backoff.next_wait()
    backoff.next_wait()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_wait() == 1


def test_what_the_other_side_asks_for_is_the_least_and_half_as_much_again_the_most() -> None:
    for choose, wait in ((longest, 45), (lambda low, _: low, 30)):
        assert Backoff(RetryPolicy(1, 5, 100), Clock(), choose).next_wait(at_least=30) == wait
    assert Backoff(RetryPolicy(1, 5, 100), Clock(), longest).next_wait(at_least=0.5) == 1.5


def test_who_waits_for_ever_has_no_patience_to_lose() -> None:
    clock = Clock()
    backoff = Backoff(RetryPolicy(1, 1, patience_s=10), clock, longest)
    backoff.next_wait()
    clock.now = 1000
    assert backoff.next_wait(for_ever=True) == 1
    assert backoff.next_wait() is None


def test_patience_counts_from_the_first_failure_in_a_row() -> None:
    clock = Clock()
    backoff = Backoff(RetryPolicy(1, 1, patience_s=10), clock, longest)
    assert backoff.next_wait() == 1
    clock.now = 9
    assert backoff.next_wait() == 1
    clock.now = 9.5
    assert backoff.next_wait() is None
    backoff.reset()
    assert backoff.next_wait() == 1


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(RetryPolicy(0.1, 5, 1e9), Clock(), longest)
    assert [backoff.next_wait() for _ in range(5000)][-1] == 5
