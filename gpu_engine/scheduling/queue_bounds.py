"""How much may wait in an engine before it refuses more."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.gpu_engine.api import EngineError
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`max_places`: requests that may be here, those that run among them; `max_tokens`: known tokens of those
    that wait. None: no bound."""

    max_places: int | None
    max_tokens: int | None

    @classmethod
    def of(cls, config: EngineConfig) -> QueueBounds:
        size = config.max_queue_size
        return cls(None if size is None else config.max_batch_size + size, config.max_queue_tokens)

    def check(self, scheduler: Scheduler, num_tokens: int) -> EngineError | None:
        """Why a request of `num_tokens` is refused now; it may be accepted later."""
        if self.max_places is not None and len(scheduler) >= self.max_places:
            return _full(
                f"The engine holds {len(scheduler)} requests, as many as max_batch_size and max_queue_size "
                "allow; send the request again later."
            )
        if self.max_tokens is not None and scheduler.num_waiting:
            waiting = scheduler.num_waiting_tokens
            if waiting + num_tokens > self.max_tokens:
                return _full(
                    f"The requests that wait have {waiting} tokens, and this one {num_tokens}; together that "
                    f"is more than max_queue_tokens, {self.max_tokens}; send the request again later."
                )
        return None


def _full(message: str) -> EngineError:
    return EngineError(code="rate_limit_exceeded", message=message)
