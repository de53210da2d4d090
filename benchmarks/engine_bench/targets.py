"""What the figures should be. Ratios are ours to the best peer's; which apply depends on the processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.engine_bench.cpu import Cpu
from benchmarks.shared.report import Target


@dataclass(frozen=True, slots=True)
class Targets:
    """Against the best peer with weights of 16 bits, and of 8; `ceiling` in per cent."""

    batched: Target
    single: Target
    first_token: Target
    ceiling: Target
    batched_int8: Target


def targets_for(cpu: Cpu) -> Targets:
    """With float16 arithmetic, which the peers leave unused, more is asked than elsewhere."""
    return Targets(
        batched=Target("at least", 2.0 if cpu.has_fp16 else 1.3),
        single=Target("at least", 1.2),
        first_token=Target("at least", 2.5 if cpu.has_fp16 else 1.3),
        ceiling=Target("at least", 85),
        batched_int8=Target("at least", 1.5),
    )


TOP1_INT8: Final = Target("at least", 97)  # per cent of tokens with the same first choice as float32
LLM_SHARE: Final = Target("at least", 97)  # per cent of the step loop's speed through `generate_batch`
BOOKKEEPING: Final = Target("at most", 5)  # per cent of a step
STEP_AT_256_MS: Final = Target("at most", 1)
IDLE_TTFT: Final = Target("at most", 1.1)  # of a bare forward
KV_WASTE: Final = Target("at most", 4)  # per cent of the allocated slots
SOAK_MIB: Final = Target("at most", 8)
