"""What one request took here: its tokens and its times, as its terminal record tells them."""

from __future__ import annotations

from headrace.broker.events import Timings, Usage
from headrace.consumer.answers import Answers
from headrace.consumer.prepare import Prepared


class Measures:
    """Times are seconds of one monotonic clock, given by the caller; `queued_ms` is by the broker's."""

    def __init__(self, now: float) -> None:
        self.queued_ms = 0
        self._began_at = now
        self._first_token_at: float | None = None

    def began(self, now: float) -> None:
        """Ready for the engine."""
        self._began_at = now

    def brought_tokens(self, now: float) -> None:
        if self._first_token_at is None:
            self._first_token_at = now

    def figures(
        self, prepared: Prepared | None, answers: Answers, now: float | None
    ) -> tuple[Usage, Timings]:
        """`prepared`: None where it was not read. `now`: None where it never ran."""
        prompt = prepared.num_prompt_tokens if prepared else 0
        one_prompt = prepared is None or prepared.embed is None
        usage = Usage(prompt, answers.num_tokens, answers.cached_tokens(one_prompt=one_prompt))
        first = _ms(self._began_at, self._first_token_at)
        return usage, Timings(self.queued_ms, first, _ms(self._began_at, now))


def _ms(since: float, until: float | None) -> int:
    return 0 if until is None else max(0, round((until - since) * 1000))
