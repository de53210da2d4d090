"""A request's log as the events of a gRPC stream.

What a reader sees is a function of the log and of the cursor it attached with. Every event goes
through `Fold`, so void events are never shown, and a reader that re-attaches behind any event it was given
sees what an unbroken reader sees.

    log      started  delta 0  delta 1 │ mark  started(kept 0)      delta 2  finished
    stream   started  delta 0  delta 1 │       restarted  started   delta 2  finished
                         cursor ───────┘ a reader that attaches here gets what follows

A mark (`Started.is_mark`) is a word of consumers among themselves: a take-over is one `started`, with or
without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from headrace.broker.events import Delta, Event, Failed, Finished, Logged, Started
from headrace.broker.fold import Fold
from headrace.broker.wire import logprobs_message, timings_message, usage_message
from headrace.v1 import inference_pb2 as pb

RESTART_REASON = "the answer so far could not be resumed and begins anew"


class StreamView:
    """Turns the log of one request into stream events; feed it every entry from the log's beginning.

    `cursor`: the last cursor that the reader has seen; entries up to it are folded without being shown.
    `body_hash`: that of the reader's own request, where it published one: a log that answers another body
    under the same id is `foreign`, and none of it is shown.
    """

    def __init__(self, request_id: str, cursor: str = "", body_hash: bytes = b"") -> None:
        self._request_id = request_id
        self._body_hash = body_hash
        self.foreign = False
        self._fold = Fold()
        self._silent_until = cursor
        self._shown_cursor = cursor

    @property
    def ended(self) -> bool:
        """Whether the terminal record has been read."""
        return self._fold.terminal is not None

    def accepted(self, duplicate: bool) -> pb.StreamEvent:
        """The first event of a `Generate`; it stands before the log, so its cursor is the beginning."""
        return self._event("", accepted=pb.StreamAccepted(duplicate=duplicate))

    def read(self, logged: Logged) -> list[pb.StreamEvent]:
        """The events to show for the next entry of the log; none for a void or silent one."""
        restarts = self._fold.restarts
        valid = self._fold.read(logged.event)
        if self._silent_until:
            if logged.cursor == self._silent_until:
                self._silent_until = ""
            return []
        if not valid:
            return []
        if isinstance(logged.event, Started) and self._answers_another_body(logged.event):
            self.foreign = True
        if self.foreign:
            return []
        return self._show(logged, restarted=self._fold.restarts > restarts)

    def _answers_another_body(self, started: Started) -> bool:
        known = self._body_hash and started.body_hash
        return bool(known) and self._body_hash != started.body_hash

    def _show(self, logged: Logged, restarted: bool) -> list[pb.StreamEvent]:
        events = []
        if restarted:
            # With the cursor of the event before it: a reader cut off between the two is told both again.
            reason = pb.StreamRestarted(reason=RESTART_REASON)
            events.append(self._event(self._shown_cursor, restarted=reason))
        shown = self._translate(logged.cursor, logged.event)
        if shown is not None:
            events.append(shown)
            self._shown_cursor = logged.cursor
        return events

    def _translate(self, cursor: str, event: Event) -> pb.StreamEvent | None:
        match event:
            case Started() if not event.is_mark:
                started = pb.StreamStarted(consumer=event.consumer, kept=event.kept)
                return self._event(cursor, started=started)
            case Delta():
                delta = pb.StreamDelta(choice=event.choice, text=event.text, token_ids=event.token_ids)
                delta.logprobs.extend(logprobs_message(each) for each in event.logprobs)
                delta.prompt_logprobs.extend(logprobs_message(each) for each in event.prompt_logprobs)
                return self._event(cursor, seq=event.seq, delta=delta)
            case Finished():
                return self._event(cursor, finished=_finished(event))
            case Failed():
                return self._event(cursor, failed=_failed(event))
        return None  # marks, fences and moves are no business of a reader

    def _event(
        self,
        cursor: str,
        *,
        seq: int | None = None,
        accepted: pb.StreamAccepted | None = None,
        started: pb.StreamStarted | None = None,
        delta: pb.StreamDelta | None = None,
        restarted: pb.StreamRestarted | None = None,
        finished: pb.StreamFinished | None = None,
        failed: pb.StreamFailed | None = None,
    ) -> pb.StreamEvent:
        return pb.StreamEvent(
            request_id=self._request_id,
            epoch=self._fold.epoch,
            seq=self._fold.next_seq if seq is None else seq,
            cursor=cursor,
            accepted=accepted,
            started=started,
            delta=delta,
            restarted=restarted,
            finished=finished,
            failed=failed,
        )


async def stream_events(log: AsyncIterator[Logged], view: StreamView) -> AsyncGenerator[pb.StreamEvent]:
    """The events of a log as it grows; closes the log when it ends, is foreign or is closed itself."""
    async with closed_behind(log):
        async for logged in log:
            for event in view.read(logged):
                yield event
            if view.foreign:
                return


@contextlib.asynccontextmanager
async def closed_behind(log: AsyncIterator[Logged]) -> AsyncIterator[None]:
    """What a watch holds at the broker is let go of when its reader has seen enough."""
    try:
        yield
    finally:
        if isinstance(log, AsyncGenerator):
            await log.aclose()


def _finished(event: Finished) -> pb.StreamFinished:
    return pb.StreamFinished(
        reason=event.reason,
        usage=usage_message(event.usage),
        timings=timings_message(event.timings),
        reasons=event.reasons,
        embeddings=event.embeddings,
    )


def _failed(event: Failed) -> pb.StreamFailed:
    return pb.StreamFailed(
        code=event.code,
        message=event.message,
        status=event.status,
        param=event.param,
        usage=usage_message(event.usage),
        timings=timings_message(event.timings),
    )
