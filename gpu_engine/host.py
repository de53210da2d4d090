"""The engine's process: what the child of a consumer runs.

    ┌► hear all that has arrived ─► step ─► tell ─┐        idle: wait for a message up to a second, then tell
    └─────────────────────────────────────────────┘        that all is well

One thread does it all. A consumer that does not listen stops the engine in `tell`: nothing piles up here.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

from headrace.gpu_engine.api import (
    Abort,
    Add,
    CountingEngine,
    EngineLost,
    FromEngine,
    Output,
    Ready,
    Shutdown,
    Stepped,
    ToEngine,
    Unusable,
)
from headrace.gpu_engine.build import EngineUnusable, build_engine
from headrace.gpu_engine.codec import decode_command, encode_message
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.garbage import collect_rarely
from headrace.gpu_engine.inbox import Inbox
from headrace.gpu_engine.lifeline import die_with

IDLE_S: Final = 1.0
PROCESS_NAME: Final = b"headrace-engine"  # at most 15 bytes

# typeshed gives Connection its two payload types, which matter to send() and recv() alone.
Pipe: TypeAlias = "Connection[Any, Any]"


def run_engine(
    config_json: bytes, connection: Pipe, build: Callable[[EngineConfig], CountingEngine] = build_engine
) -> None:
    """Main of an engine process, to be spawned by `multiprocessing`. `config_json`: an EngineConfig, `build`
    makes the engine from it.

    Sends Ready or Unusable, then serves `connection` until Shutdown or until the other end is gone. An
    exception in a step ends the process with a traceback on stderr and a non-zero exit code; EngineLost with
    its sentence alone. Ctrl-C reaches the whole process group and is ignored: the consumer decides when to
    end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    collect_rarely()
    config = EngineConfig.model_validate_json(config_json)
    try:
        engine = build(config)
    except EngineUnusable as error:
        _tell(connection, Unusable(message=str(error)))
        return
    gc.freeze()  # the model lives as long as the process: no collection need look at it
    if _tell(connection, Ready(info=engine.info)):
        serve(engine, connection)


def serve(engine: CountingEngine, connection: Pipe) -> None:
    """Drives `engine` for the process at the other end, until Shutdown or until that end is closed."""
    host = EngineHost(engine, connection)
    try:
        while host.hear() and host.step_and_tell():
            pass
    except EngineLost as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


class EngineHost:
    """One engine and the connection that it is served to. Each method returns whether to go on. `idle_s`: how
    long to wait for a message before telling that all is well."""

    def __init__(self, engine: CountingEngine, connection: Pipe, idle_s: float = IDLE_S) -> None:
        self._engine = engine
        self._connection, self._inbox = connection, Inbox(connection)
        self._idle_s = idle_s
        self._refused: list[Output] = []
        self._steps = 0

    def hear(self) -> bool:
        """Takes in all messages that have arrived; waits for one while there is nothing to do."""
        try:
            messages = self._inbox.receive(0.0 if self._engine.has_work else self._idle_s)
        except EOFError:
            return False
        return all(self._obey(decode_command(message)) for message in messages)

    def step_and_tell(self) -> bool:
        outputs, self._refused = self._refused, []
        if self._engine.has_work:
            outputs += self._engine.step()
            self._steps += 1
        return _tell(
            self._connection,
            Stepped(
                step=self._steps,
                outputs=outputs,
                running=self._engine.num_running,
                waiting=self._engine.num_waiting,
            ),
        )

    def _obey(self, command: ToEngine) -> bool:
        match command:
            case Add(request=request):
                error = self._engine.add(request)
                if error is not None:
                    self._refused.append(Output(id=request.id, error=error))
            case Abort(id=request_id):
                self._engine.abort(request_id)
            case Shutdown():
                return False
        return True


def _tell(connection: Pipe, message: FromEngine) -> bool:
    """Sends; returns whether there is still somebody to listen."""
    try:
        connection.send_bytes(encode_message(message))
    except ConnectionError:
        return False
    return True


def _die_with_parent() -> None:
    """Elsewhere than on Linux the closed connection ends this process after the step that runs. Does nothing
    outside a child process."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid, PROCESS_NAME)
