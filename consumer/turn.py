"""Whose turn it is: one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turn:
    """Taken by whoever comes first while it is free. Made and used in one event loop."""

    def __init__(self) -> None:
        self._holder: object | None = None
        self._changed = asyncio.Event()

    def take(self, who: object) -> bool:
        """Whether it is `who`'s now."""
        if self._holder is None:
            self._holder = who
        return self._holder is who

    async def wait(self, who: object, over: Callable[[], bool]) -> None:
        """Until `who` has it, or needs it no more; `look_again` where that may have changed."""
        while not (over() or self.take(who)):
            self._changed.clear()
            await self._changed.wait()

    def look_again(self) -> None:
        """Some of those who wait may have given up."""
        self._changed.set()

    def give_back(self, who: object) -> None:
        """Nothing happens where it is another one's."""
        if self._holder is who:
            self._holder = None
            self._changed.set()
