"""Bears a broker, or a blob store, that is away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.broker.blobs import BlobUnreachable
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.producer.backoff import Backoff, RetryPolicy
from headrace.producer.file_run.options import FileRunError

Answer = TypeVar("Answer")


async def persist(call: Callable[[], Awaitable[Answer]], policy: RetryPolicy) -> Answer:
    """The call's answer, tried again while the broker is away and patience lasts."""
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except (BrokerUnavailable, BlobUnreachable) as error:
            await pause(error, backoff)


async def pause(error: BrokerError, backoff: Backoff) -> None:
    """Waits for the next attempt; FileRunError where patience is at its end."""
    wait = backoff.next_wait()
    if wait is None:
        who = "the blob store" if isinstance(error, BlobUnreachable) else "the broker"
        raise FileRunError(
            f"{who} stays away ({error}); start again once it is back: the answers so far are kept"
        ) from error
    await asyncio.sleep(wait)
