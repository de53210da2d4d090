"""The requests of the measurements with a real engine, and the same engine without a queue.

python -m benchmarks.queue_bench.real_engine MODEL REQUESTS TOKENS        prints seconds, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from headrace.cli.models import resolve_model
from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.llm import LLM

_TEXT = """the mill by the river grinds grain from dawn until the light is gone
and then rests for the wheel needs water and the water needs rain"""


def prompts(count: int, words: int = 48, first: int = 0) -> list[str]:
    """Prompts of about the same length, no two of them alike from the first word on."""
    text = _TEXT.split()

    def prompt(number: int) -> str:
        places = range(words)
        return " ".join([str(number), *(text[(number * 7 + place * place) % len(text)] for place in places)])

    return [prompt(number) for number in range(first, first + count)]


def engine_arguments(model: str) -> list[str]:
    """Options of `headrace consumer` for the engine that `main` runs."""
    return ["--model", model, "--threads", str(threads()), "--no-enable-prefix-caching"]


def threads() -> int:
    """One core is left to the queue, the gateway and the client, with and without them: the tax is what the
    queue costs the engine, not what a second program on its core would."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def main(arguments: Sequence[str]) -> None:
    model, count, tokens = arguments[0], int(arguments[1]), int(arguments[2])
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    with LLM(resolve_model(model), threads=threads(), enable_prefix_caching=False) as llm:
        llm.generate_batch(prompts(4, first=10_000), params)
        began = time.perf_counter()
        completions = llm.generate_batch(prompts(count), params)
        seconds = time.perf_counter() - began
    assert all(len(completion.token_ids) == tokens for completion in completions)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])
