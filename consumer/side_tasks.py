"""Tasks that a worker runs beside its requests: whichever ends first, or fails, ends the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from headrace.consumer.errors import ConsumerError


class SideTasks:
    """Made in a running event loop. `failed` raises what failed first."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lasting: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs work that may end, but must not fail."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._check)
        return task

    def start_lasting(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs work that must not end before it is cancelled."""
        task = self.start(work, name)
        task.add_done_callback(lambda ended: self._fail(ConsumerError(f"the {name} ended")))
        self._lasting.append(task)
        return task

    async def stop(self, others: Iterable[asyncio.Task[None]]) -> None:
        """Ends the lasting ones and `others`; what is cancelled from here on has not failed."""
        self.failed.cancel()
        await cancel([*others, *self._lasting])

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits until they are gone; what they raised was, or will be, told elsewhere."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
