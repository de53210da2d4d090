"""What is held against one request: engines and owners that died with it. `quarantine` acts on it.

placed ──engine dies──► one death more, it waits for its next placing
placed ──first token──► cleared, in the log too once that token stands there
"""

from __future__ import annotations

from headrace.broker.fold import Deaths


class Suspicion:
    """`deaths`: of engines and owners with it, in a row, without a token of it in between. `doubtful`:
    somebody who had it before may have died of it."""

    __slots__ = ("_tokens_when_placed", "barren", "deaths", "doubtful")

    def __init__(self, deaths: Deaths, *, doubtful: bool) -> None:
        self.deaths = deaths
        self.doubtful = doubtful
        self.barren = True  # it brought no token since it was put into the engine
        self._tokens_when_placed = 0

    def placed(self, num_tokens: int) -> None:
        """It goes into the engine, with so many tokens of all its answers."""
        self.barren, self._tokens_when_placed = True, num_tokens

    def engine_died(self, *, alone: bool) -> None:
        """The engine died with it; `alone`: nothing else was in there."""
        if self.barren:
            self.deaths = Deaths(self.deaths.all + 1, self.deaths.lone + alone)

    def brought_token(self) -> bool:
        """Nothing is held against it any more. True: that is news, it is the first since it was placed."""
        if not self.barren:
            return False
        self.barren, self.deaths = False, Deaths()
        return True

    def proved_innocent(self, num_logged: int) -> bool:
        """Whether a token that it brought since it was placed is among the `num_logged` in the log."""
        return num_logged > self._tokens_when_placed
