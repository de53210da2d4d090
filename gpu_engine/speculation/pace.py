"""How much is drafted for one request: as much as its drafts turn out to be right."""

from __future__ import annotations

from typing import Final, Protocol

LOWEST_PRICE: Final = 0.1
"""Drafts that hardly ever are right cost more than rows: what is proposed, checked and taken back."""

FIRST: Final = 2
"""Tokens of the first draft. Most texts do not repeat themselves, and all have a first draft."""

TRY_EVERY: Final = 16
"""Steps after which a request whose drafts did not pay tries a single token: texts change."""


class Pace(Protocol):
    def length(self, price: float) -> int:
        """Tokens that the next draft may have. `price`: see `Price.of`. Asked once a step."""

    def observe(self, proposed: int, accepted: int) -> None:
        """Of `proposed` tokens, at least one, `accepted` were right."""


class Steady:
    """Always the same."""

    __slots__ = ("_longest",)

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def length(self, price: float) -> int:
        return self._longest

    def observe(self, proposed: int, accepted: int) -> None:
        pass


class AdaptivePace:
    """A draft is twice as long as what was right of the last one, at least one token and at most `longest`.

    There is none while the share of tokens that are right, a mean in which each draft weighs as much as all
    before it, is below the price; then a single token is tried in one step of TRY_EVERY.
    """

    __slots__ = ("_length", "_longest", "_passed", "_share")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._length = min(FIRST, longest)
        self._share = 1.0
        self._passed = 0

    def length(self, price: float) -> int:
        if self._share >= max(price, LOWEST_PRICE):
            return self._length
        self._passed += 1
        if self._passed < TRY_EVERY:
            return 0
        self._passed = 0
        return 1

    def observe(self, proposed: int, accepted: int) -> None:
        self._length = max(1, min(self._longest, 2 * accepted))
        self._share += (accepted / proposed - self._share) / 2
