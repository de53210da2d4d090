"""Why a request is stopped from outside, and what is told of it."""

from __future__ import annotations

import enum

from headrace.consumer import failures
from headrace.consumer.failures import Failure


class Doom(enum.Enum):
    """Why a request is stopped from outside: it shall end with the text so far, or go on elsewhere."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RECALLED = "recalled"

    def ending(self) -> Failure | None:
        """What is told of it; None: nothing, it goes on elsewhere."""
        match self:
            case Doom.CANCELLED:
                return failures.CANCELLED
            case Doom.EXPIRED:
                return failures.EXPIRED
            case Doom.RECALLED:
                return None
