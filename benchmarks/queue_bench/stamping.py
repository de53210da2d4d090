"""A consumer whose engine writes the time into its tokens, so that their way to a reader can be measured.

    python -m benchmarks.queue_bench.stamping STEP_MS LEASE_MS READY_FILE      (broker: HEADRACE_BROKER)

All but the engine is what `headrace consumer` runs: its process, the pipe, the session, the log. Each token
is the time at the end of its step, see `stamps`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.queue_bench.stamps import stamp
from headrace.broker.connect import connect
from headrace.cli.event_loop import run_service
from headrace.consumer.drain import Drain, drain_on_signals
from headrace.consumer.engine_process import EngineProcess
from headrace.consumer.prepare import Preparer
from headrace.consumer.ready_file import write_ready_file
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.worker import Parts, Worker
from headrace.gpu_engine.api import EngineError, EngineInfo, EngineRequest, EngineStats, Output
from headrace.gpu_engine.config import EngineConfig, SimConfig
from headrace.gpu_engine.host import Pipe, run_engine
from headrace.gpu_engine.text.sim import SimTokenizer

BATCH = 64


@dataclass(slots=True)
class StampingEngine:
    """Gives each running request one token a step of `step_s` seconds. Implements `Engine`."""

    step_s: float
    info: EngineInfo
    _lengths: dict[str, int] = field(default_factory=dict)  # tokens that are left
    _next_at: float = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._lengths)

    @property
    def num_running(self) -> int:
        return len(self._lengths)

    @property
    def num_waiting(self) -> int:
        return 0

    @property
    def stats(self) -> EngineStats:
        return EngineStats(running=self.num_running, waiting=self.num_waiting)

    def add(self, request: EngineRequest) -> EngineError | None:
        self._lengths[request.id] = (request.params.max_tokens or 1) - len(request.output_ids)
        return None

    def abort(self, request_id: str) -> None:
        self._lengths.pop(request_id, None)

    def step(self) -> list[Output]:
        self._next_at = max(self._next_at + self.step_s, time.monotonic())
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        token = stamp()
        outputs = []
        for request_id in list(self._lengths):
            self._lengths[request_id] -= 1
            ended = self._lengths[request_id] <= 0
            outputs.append(
                Output(id=request_id, token_ids=[token], finish_reason="length" if ended else None)
            )
            if ended:
                del self._lengths[request_id]
        return outputs


def build_stamping_engine(config: EngineConfig) -> StampingEngine:
    info = EngineInfo(
        model="stamping",
        fingerprint="stamping",
        max_batch_size=BATCH,
        max_input_length=1000,
        max_total_tokens=1_000_000,
        kv_tokens=1_000_000,
    )
    return StampingEngine(config.sim.step_ms / 1000, info)


def run_stamping_engine(config_json: bytes, connection: Pipe) -> None:
    """Main of the engine's process, in place of `run_engine`."""
    run_engine(config_json, connection, build_stamping_engine)


async def run_consumer(step_ms: float, lease_ms: int, ready: Path) -> int:
    engine = EngineConfig(engine="sim", sim=SimConfig(step_ms=step_ms), max_batch_size=BATCH)
    settings = ConsumerSettings(broker=os.environ["HEADRACE_BROKER"], engine=engine, lease_ms=lease_ms)
    broker = await connect(settings.broker)
    session = await broker.consume(settings.lanes, settings.lease_ms)

    async def prepare(info: EngineInfo) -> Preparer:
        return Preparer(SimTokenizer(), [info.model])

    parts = Parts(
        session,
        broker,
        lambda: EngineProcess(engine, run_stamping_engine),
        prepare,
        lambda info, handle: write_ready_file(ready, engine_pid=handle.pid, model=info.model),
    )
    drain = Drain(0)
    with drain_on_signals(drain):
        await Worker(parts, settings, drain).run()
    await session.close()
    await broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_service(run_consumer(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
