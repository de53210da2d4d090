"""vLLM, the build for CPUs: `LLM.generate`, its engine in a process of its own as usual."""

from __future__ import annotations

import argparse

from obeying import Answer, Row, obey, parser


def load(options: argparse.Namespace) -> Answer:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(options.model),
        dtype=options.dtype,
        max_model_len=1024,
        max_num_seqs=options.slots,
        max_num_batched_tokens=max(1024, options.step_budget),  # it refuses less than the longest request
        enable_prefix_caching=False,
    )

    def answer(rows: list[Row]) -> int:
        prompts = [{"prompt_token_ids": row.prompt} for row in rows]
        params = [
            SamplingParams(temperature=0, max_tokens=row.tokens, ignore_eos=True, detokenize=False)
            for row in rows
        ]
        found = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in found)

    return answer


if __name__ == "__main__":
    options = parser()
    options.add_argument("--dtype", required=True)
    obey(options.parse_args(), load)
