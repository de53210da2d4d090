"""A clock that only sleeping moves, and engines driven to their end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.gpu_engine.api import Engine, EngineRequest, Output, SamplingParams
from headrace.gpu_engine.config import EngineConfig, SimConfig
from headrace.gpu_engine.sim import SimEngine
from headrace.gpu_engine.text.sim import SimTokenizer

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class FakeClock:
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def sim_engine(clock: FakeClock | None = None, *, batch: int = 16, **sim: float) -> SimEngine:
    clock = clock or FakeClock()
    config = EngineConfig(engine="sim", max_batch_size=batch, sim=SimConfig.model_validate(sim))
    return SimEngine(config, clock=clock.read, sleep=clock.sleep)


def request(
    request_id: str,
    prompt: str = "prompt",
    *,
    params: SamplingParams = GREEDY,
    output_ids: Sequence[int] = (),
    priority: int = 1,
    deadline_ms: int | None = None,
) -> EngineRequest:
    return EngineRequest(
        id=request_id,
        prompt_ids=SimTokenizer().encode(prompt),
        params=params,
        output_ids=list(output_ids),
        priority=priority,
        deadline_ms=deadline_ms,
    )


def drive(engine: Engine, limit: int = 100_000) -> list[Output]:
    """All outputs until the engine is idle."""
    outputs: list[Output] = []
    for _ in range(limit):
        if not engine.has_work:
            return outputs
        outputs += engine.step()
    raise AssertionError("the engine never became idle")


def tokens_of(outputs: Iterable[Output], request_id: str) -> list[int]:
    return [token for output in outputs if output.id == request_id for token in output.token_ids]


def text_of(outputs: Iterable[Output], request_id: str) -> str:
    return "".join([output.text for output in outputs if output.id == request_id])


def last_of(outputs: Iterable[Output], request_id: str) -> Output:
    return [output for output in outputs if output.id == request_id][-1]
