"""A batching policy of your own: refill the batch only when half of it is free.

Each prompt that joins makes one step longer for everybody who is in the middle of an answer. This policy
lets those who came wait until half of the places are free, and then takes them all together: answers flow
more evenly, first tokens come later.

    PYTHONPATH=examples headrace run in.jsonl out.jsonl --batching-policy refill_policy:Refill

A package would name it in its pyproject.toml, after which `--batching-policy refill` does:

    [project.entry-points."headrace.batching_policies"]
    refill = "refill_policy:Refill"
"""

from __future__ import annotations

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.scheduling.policies import BatchState


class Refill:
    """Lets requests in when no more than half of the places are taken; nobody waits longer than a second."""

    def __init__(self, config: EngineConfig) -> None:
        self.low_water = config.max_batch_size // 2

    def let_in(self, state: BatchState) -> int:
        if state.num_active > self.low_water and state.oldest_wait_ms < 1000:
            return 0
        return max(0, state.max_batch_size - state.num_active)
