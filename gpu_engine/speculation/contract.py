"""What guesses how an answer goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses the next tokens of one request. Each guess is verified before it counts: a wrong one costs
    time, never a token."""

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may come after `token_ids`, which are all that is known; none where it
        has no guess. From call to call the known tokens only grow."""
