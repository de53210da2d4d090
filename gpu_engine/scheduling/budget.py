"""How many tokens a step may compute: the configured number, or fewer for a while after memory ran out."""

from __future__ import annotations

GOOD_STEPS = 16
"""Steps in a row that must succeed before a shrunken budget grows by a quarter."""


class StepBudget:
    """The tokens of a step, at most `limit` and at least 1. `is_shrunken`: fewer than that, or no more than
    that where a step may otherwise have more (`chunks`)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = limit
        self.shrinks = 0
        self.is_shrunken = False
        self._good = 0

    def shrink(self, num_tokens: int, num_draft_tokens: int = 0) -> bool:
        """A step of `num_tokens` ran out of memory: the next has half of them at most, or, where some were
        drafts, as many as were not. False if that one was a single token, so that nothing is left to
        halve."""
        self._good = 0
        if num_tokens <= 1:
            return False
        self.shrinks += 1
        fewer = num_tokens - num_draft_tokens if num_draft_tokens else min(self.tokens, num_tokens) // 2
        self.tokens = max(1, min(self.tokens, fewer))
        self.is_shrunken = True
        return True

    def note_success(self) -> None:
        """A step went well. The budget creeps back, lest the next long prompt meets the same wall at once."""
        if not self.is_shrunken:
            return
        self._good += 1
        if self._good >= GOOD_STEPS:
            self._good = 0
            self.tokens = min(self.limit, self.tokens + max(1, self.tokens // 4))
            self.is_shrunken = self.tokens < self.limit
