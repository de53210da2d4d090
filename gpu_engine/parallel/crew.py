"""The other ranks, as rank 0 sees them: told what to do, and noticed when they are gone."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, Protocol

from headrace.gpu_engine.api import EngineLost
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.parallel.messages import Failed, FromWorker, ToWorker, decode_answer, encode
from headrace.gpu_engine.parallel.worker import Pipe

CLOSE_S: Final = 5.0
"""How long a worker may take to end by itself."""


class RanksLost(EngineLost):
    """Another rank is gone or silent, and the engine cannot go on; the text is a sentence."""


class Worker(Protocol):
    """A rank that runs somewhere else, and the connection to it."""

    @property
    def connection(self) -> Pipe: ...

    def wait(self, patience_s: float) -> int | None:
        """Its exit code, negative for a signal, if it ends within that time."""

    def kill(self) -> None:
        """Ends it at once, if it has not ended."""


class Crew:
    """Ranks 1 to size - 1, in their order. `send_s`: how long one may take to read what it is told, where its
    pipe is full; `verdict_s`: how long to look for the one that is to blame."""

    def __init__(self, workers: Sequence[Worker], *, send_s: float, verdict_s: float) -> None:
        for worker in workers:
            _bound_sending(worker.connection, send_s)
        self._workers = workers
        self._verdict_s = verdict_s

    @property
    def size(self) -> int:
        """All ranks, the first among them."""
        return len(self._workers) + 1

    def tell(self, message: ToWorker) -> None:
        """To all. Raises RanksLost."""
        data = encode(message)
        for worker in self._workers:
            self._send(worker, data)

    def tell_each(self, messages: Sequence[ToWorker]) -> None:
        """To each its own. Raises RanksLost."""
        for worker, message in zip(self._workers, messages, strict=True):
            self._send(worker, encode(message))

    def hear(self, patience_s: float) -> Sequence[FromWorker]:
        """One message of each. Raises RanksLost, and ModelError where one says so."""
        ends_at = time.monotonic() + patience_s
        answers = [_receive(worker, ends_at - time.monotonic()) for worker in self._workers]
        heard = [answer for answer in answers if answer is not None and not isinstance(answer, Failed)]
        if len(heard) < len(answers):
            raise self.lost(answers)
        return heard

    def lost(self, answers: Sequence[FromWorker | None] = ()) -> RanksLost | ModelError:
        """Finds out which rank is to blame for what has just failed, and ends all of them: they are out of
        step for good. `answers`: what was heard of each already."""
        heard = answers or [_receive(worker, 0) for worker in self._workers]
        failures = {i: answer for i, answer in enumerate(heard, 1) if isinstance(answer, Failed)}
        fates = {i: f"failed ({failure.message})" for i, failure in failures.items()} or self._find_dead()
        self.kill()
        for failure in failures.values():
            if failure.by_user:
                return ModelError(failure.message)
        return self._lost(*next(iter(fates.items()), ("1 or higher", "does not answer")))

    def leave(self, error: Exception) -> RanksLost:
        """Rank 0 cannot go on because of `error`: ends the others."""
        self.kill()
        return self._lost(0, f"failed ({type(error).__name__}: {one_line(error)})")

    def kill(self) -> None:
        """Ends them at once."""
        for worker in self._workers:
            worker.kill()

    def close(self) -> None:
        """Lets them end, and waits for it."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            if worker.wait(CLOSE_S) is None:
                worker.kill()

    def _lost(self, rank: int | str, how: str) -> RanksLost:
        return RanksLost(f"Rank {rank} of the model's {self.size} {how}, and the engine ends with it.")

    def _send(self, worker: Worker, data: bytes) -> None:
        try:
            worker.connection.send_bytes(data)
        except OSError as error:
            raise self.lost() from error

    def _find_dead(self) -> dict[int, str]:
        """How ranks ended, those before all that did not end by themselves: the others lost their peers."""
        ends_at = time.monotonic() + self._verdict_s
        codes = {
            i: worker.wait(max(0.0, ends_at - time.monotonic())) for i, worker in enumerate(self._workers, 1)
        }
        dead = {i: code for i, code in codes.items() if code is not None}
        return {i: _describe(dead[i]) for i in sorted(dead, key=lambda i: dead[i] == 0)}


def _receive(worker: Worker, patience_s: float) -> FromWorker | None:
    """What it says next; None: nothing in that time, or it is gone."""
    try:
        if not worker.connection.poll(max(0.0, patience_s)):
            return None
        return decode_answer(worker.connection.recv_bytes())
    except (EOFError, OSError):
        return None


def _bound_sending(connection: Pipe, seconds: float) -> None:
    """Lets a write fail that takes longer: a pipe in both directions is a pair of sockets."""
    whole = int(seconds)
    timeval = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def _describe(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
