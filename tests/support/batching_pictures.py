"""Draws the pictures of docs/batching.md from traces of the engine.

After a change: `python -m tests.support.batching_pictures`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.gpu_engine.picture.svg import to_svg
from headrace.gpu_engine.picture.timeline import draw_timeline
from headrace.gpu_engine.trace import Trace, read_trace
from tests.unit.engine.fakes import Bench, request

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"

POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "static": {},
    "dynamic": {"max_waiting_tokens": 100, "max_wait_ms": 60},
    "continuous": {},
}
"""Each with its settings."""

STEP_MS: Final = 10


def record(policy: str, path: Path) -> Trace:
    """Two places; A has 6 tokens to say, B 2, C 3. All are there at first, but for dynamic batching, where B
    comes in the third step and C in the fourth."""
    comes = {"A": 1, "B": 3, "C": 4} if policy == "dynamic" else {"A": 1, "B": 1, "C": 1}
    tokens = {"A": 6, "B": 2, "C": 3}
    step = 1
    bench = Bench(
        num_blocks=9,
        max_batch_size=2,
        max_batch_tokens=64,
        batching_policy=policy,
        trace_path=str(path),
        clock=lambda: step * STEP_MS / 1000,
        **POLICIES[policy],
    )
    while step <= 4 or bench.engine.has_work:
        for name in [name for name, first in comes.items() if first == step]:
            bench.add(request(name, 7, tokens[name]))
        bench.step()
        step += 1
    del bench  # the trace is closed
    return read_trace(path)


def draw(policy: str) -> str:
    """The picture of the three requests under a policy."""
    with tempfile.TemporaryDirectory() as folder:
        return to_svg(draw_timeline(record(policy, Path(folder) / "trace.jsonl"), "step"))


if __name__ == "__main__":
    for name in POLICIES:
        (PICTURES / f"batching-{name}.svg").write_text(draw(name), encoding="utf-8")
