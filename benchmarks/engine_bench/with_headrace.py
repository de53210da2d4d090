"""Our engine as a contestant, see `peers/obeying`: the bare step loop, or `LLM.generate_batch` over it.

python -m benchmarks.engine_bench.with_headrace MODEL WORKLOAD [options]
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.engine_bench.peers.obeying import Answer, Row, obey, parser
from headrace.gpu_engine.api import CountingEngine, EngineRequest, SamplingParams
from headrace.gpu_engine.build import load_engine
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.llm import LLM

LONGEST = 1024  # tokens of a request, prompt and answer


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of `EngineConfig`."""
    return {
        "model": str(options.model),
        "backend": options.backend,
        "weight_format": options.weights,
        "threads": options.threads,
        "pin_threads": options.pin,
        "max_batch_size": options.slots,
        "max_batch_tokens": options.step_budget,
        "max_total_tokens": LONGEST,
        "enable_prefix_caching": options.prefix_cache,
        "batching_policy": options.policy,
        "speculative_method": options.speculate,
        "num_kv_blocks": options.kv_blocks,
        "swap_space_bytes": options.swap_mib << 20,
        "enable_peak_admission": options.peak_admission,
    }


def load(options: argparse.Namespace) -> Answer:
    settings = engine_settings(options)
    return through_llm(LLM(**settings)) if options.llm else through_steps(settings)


def through_llm(llm: LLM) -> Answer:
    def answer(rows: list[Row]) -> int:
        completions = llm.generate_batch([row.prompt for row in rows], [forced(row.tokens) for row in rows])
        return sum(len(completion.token_ids) for completion in completions)

    return answer


def through_steps(settings: dict[str, Any]) -> Answer:
    engine = load_engine(EngineConfig(**settings)).engine
    return lambda rows: answer_in_steps(engine, rows)


def answer_in_steps(engine: CountingEngine, rows: list[Row]) -> int:
    """The shortest way there is: all requests at once, then steps until none is left. Raises RuntimeError
    where one is refused or fails."""
    for number, row in enumerate(rows):
        error = engine.add(EngineRequest(id=str(number), prompt_ids=row.prompt, params=forced(row.tokens)))
        if error is not None:
            raise RuntimeError(error.message)
    made = 0
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(output.error.message)
            made += len(output.token_ids)
    return made


def forced(tokens: int) -> SamplingParams:
    """Greedy, and as long as asked whatever comes."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def main() -> None:
    options = parser()
    options.add_argument("--weights", default="auto", choices=["auto", "float32", "int16", "int8", "int4"])
    options.add_argument("--backend", default="auto", choices=["auto", "native", "torch"])
    options.add_argument("--policy", default="continuous")
    options.add_argument("--prefix-cache", action="store_true")
    options.add_argument("--speculate", default="none", choices=["none", "ngram"])
    options.add_argument("--kv-blocks", type=int)
    options.add_argument("--swap-mib", type=int, default=0)
    options.add_argument("--peak-admission", action=argparse.BooleanOptionalAction, default=True)
    options.add_argument("--llm", action="store_true", help="through LLM.generate_batch")
    options.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True)
    obey(options.parse_args(), load)


if __name__ == "__main__":
    main()
