"""What becomes of a request when the reader of its stream leaves before its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from headrace.broker.contract import Broker, Published
from headrace.broker.errors import BrokerError
from headrace.broker.events import Started
from headrace.broker.message import Lane, Message, RequestRef
from headrace.producer.gateway.status import Refusal
from headrace.producer.gateway.stream import closed_behind
from headrace.v1 import inference_pb2 as pb

log = logging.getLogger(__name__)

# A stream that ends this close to its request's deadline was ended by it: the record shall say `expired`.
DEADLINE_SLACK_MS = 250
# A log that was begun long before our publish is looked for, in a busy partition for seconds. To wait in vain
# costs little: as soon as the reader's own request runs, its log says so.
_LOOK_S = 5.0


class Disconnects:
    """Cancels, in the background, what dies with its stream. `now_ms`: unix time."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int]) -> None:
        self._broker, self._now_ms = broker, now_ms
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closing = False

    def close(self) -> None:
        """From now on streams end because the gateway goes away: their requests live on."""
        self._closing = True

    async def finished(self) -> None:
        """Returns when all that was begun is done."""
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    def left(
        self, request: pb.GenerateRequest, message: Message, publishing: asyncio.Future[Published | Refusal]
    ) -> None:
        """The stream of this request ended before its answer, perhaps before its publish."""
        if not self._closing and self._dies_with_its_stream(request, message):
            self._in_background(self._cancel(publishing, message))

    def _dies_with_its_stream(self, request: pb.GenerateRequest, message: Message) -> bool:
        """Not when the deadline ended the call: that ends the request as well, under its own name."""
        if message.deadline_ms is not None and self._now_ms() >= message.deadline_ms - DEADLINE_SLACK_MS:
            return False
        if request.HasField("cancel_on_disconnect"):
            return request.cancel_on_disconnect
        return message.lane is Lane.INTERACTIVE

    async def _cancel(self, publishing: asyncio.Future[Published | Refusal], message: Message) -> None:
        """Waits for the publish first: a cancellation counts only for what was published before it."""
        published = await publishing
        if not isinstance(published, Published):
            return
        try:
            if message.request_id is None or not await self._is_anothers(published.ref, message.body_hash):
                await self._broker.cancel(published.ref)
        except BrokerError as error:
            log.warning("%s runs on without a reader: %s", published.ref.request_id, error)

    async def _is_anothers(self, ref: RequestRef, body_hash: bytes) -> bool:
        """Whether the id that our reader chose belongs to a request with another body, which a cancellation
        would end: Kafka does not look an id up when something is published, only the log tells."""
        entries = self._broker.watch(ref)
        with contextlib.suppress(TimeoutError):
            async with closed_behind(entries), asyncio.timeout(_LOOK_S):
                async for logged in entries:
                    event = logged.event
                    if isinstance(event, Started) and event.body_hash:
                        return event.body_hash != body_hash
        return False

    def _in_background(self, cleanup: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(cleanup)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
