"""How much may wait in an engine before it refuses more."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.gpu_engine.api import EngineError, EngineRequest
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`max_places`: requests that may be here, those that run among them; `max_tokens`: known tokens of those
    that wait beyond the `max_batch_size` that can run. None: no bound."""

    max_batch_size: int
    max_places: int | None
    max_tokens: int | None

    @classmethod
    def of(cls, config: EngineConfig) -> QueueBounds:
        size = config.max_queue_size
        places = None if size is None else config.max_batch_size + size
        return cls(config.max_batch_size, places, config.max_queue_tokens)

    def check(self, scheduler: Scheduler, request: EngineRequest) -> EngineError | None:
        """Why `request` is refused now; it may be accepted later. An interrupted answer was accepted once,
        and so was what another answer to the same prompt belongs to."""
        if request.output_ids or request.other_outputs or request.prompt_of is not None:
            return None
        if self.max_places is not None and len(scheduler) >= self.max_places:
            return _full(
                f"The engine holds {len(scheduler)} requests, as many as max_batch_size and max_queue_size "
                "allow; send the request again later."
            )
        free = self.max_batch_size - scheduler.num_running
        if self.max_tokens is not None and scheduler.num_waiting > free:
            waiting, num_tokens = scheduler.num_waiting_tokens(free), len(request.prompt_ids)
            if waiting + num_tokens > self.max_tokens:
                return _full(
                    f"The requests that wait have {waiting} tokens, and this one {num_tokens}; together that "
                    f"is more than max_queue_tokens, {self.max_tokens}; send the request again later."
                )
        return None


def _full(message: str) -> EngineError:
    return EngineError(code="rate_limit_exceeded", message=message)
