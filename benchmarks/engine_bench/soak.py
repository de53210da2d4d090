"""Thousands of short requests of many kinds through one engine: its memory must not grow with them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.targets import SOAK_MIB
from benchmarks.shared.processes import rss_mib
from benchmarks.shared.report import Row
from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.llm import LLM

NAME: Final = "soak"
_TOGETHER: Final = 50
_TINY: Final = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB resident: after the first fifth of the requests, when all caches are full, at most since then, and
    at the end."""

    early: float
    most: float
    late: float


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    count = 500 if settings.quick else 10_000
    folder = settings.folder(NAME)
    (folder / "config.json").write_text(json.dumps(_TINY))
    memory, _ = apart(soak, folder, count)
    note = f"{memory.early:.0f} MiB after the first fifth, at most {memory.most:.0f} since; a tiny model"
    what = f"growth of memory over {count:,} requests"
    yield Row(NAME, what, memory.late - memory.early, "MiB", SOAK_MIB, note)


def soak(folder: Path, count: int) -> Memory:
    """The prefix cache is on, and small, so that it is full soon and loses blocks all the time."""
    kinds, resident = random.Random(1), list[float]()
    with LLM(str(folder), load_format="dummy", threads=1, num_kv_blocks=256) as llm:
        for _ in range(0, count, _TOGETHER):
            prompts = [[kinds.randrange(300) for _ in range(kinds.randint(4, 48))] for _ in range(_TOGETHER)]
            completions = llm.generate_batch(prompts, [_draw_params(kinds) for _ in prompts])
            assert all(completion.error is None for completion in completions)
            resident.append(rss_mib(os.getpid()))
    settled = resident[len(resident) // 5 :]
    return Memory(settled[0], max(settled), settled[-1])


def _draw_params(kinds: random.Random) -> SamplingParams:
    """Greedy or not, with penalties, log probabilities, several answers: whatever keeps a state."""
    tokens = kinds.randint(2, 12)
    return kinds.choice(
        [
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
            SamplingParams(max_tokens=tokens, top_p=0.9, seed=kinds.randrange(1000)),
            SamplingParams(max_tokens=tokens, logprobs=3, repetition_penalty=1.2),
            SamplingParams(max_tokens=tokens, stop=("a", "bc"), n=2),
        ]
    )
