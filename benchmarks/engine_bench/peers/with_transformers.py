"""transformers: `generate` in batches of --slots, each as long as its longest, or continuous batching."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from obeying import Answer, Row, obey, parser
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig


def load(options: argparse.Namespace) -> Answer:
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(
        str(options.model), dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None  # lengths are forced
    model.generation_config.pad_token_id = 0
    return static(model, options.slots) if options.mode == "static" else continuous(model, options)


def static(model: Any, slots: int) -> Answer:
    def answer(rows: list[Row]) -> int:
        batches = [rows[first : first + slots] for first in range(0, len(rows), slots)]
        return sum(generate(model, batch) for batch in batches)

    return answer


@torch.inference_mode()
def generate(model: Any, rows: list[Row]) -> int:
    """The padding on the left, and the steps that only the longest row needs, are the price of this mode."""
    tokens, width = max(row.tokens for row in rows), max(len(row.prompt) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, width - len(row.prompt) :] = torch.tensor(row.prompt)
        mask[place, width - len(row.prompt) :] = 1
    made = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    assert made.shape[1] == width + tokens
    return sum(row.tokens for row in rows)


def continuous(model: Any, options: argparse.Namespace) -> Answer:
    page = 32
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            max_new_tokens=256, eos_token_id=-1, pad_token_id=0, do_sample=False
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=page,
            num_blocks=options.slots * 1024 // page,  # unset, the cache would take most of the memory
            max_batch_tokens=options.step_budget,
            max_requests_per_batch=options.slots,
            allow_block_sharing=False,
        ),
    )
    manager.start()

    def answer(rows: list[Row]) -> int:
        for row in rows:
            manager.add_request(row.prompt, request_id=None, max_new_tokens=row.tokens)
        ended = made = 0
        while ended < len(rows):
            found = manager.get_result(timeout=1)
            if found is None and not manager.is_running():
                raise SystemExit("its manager has ended")
            if found is None or not found.is_finished():
                continue
            if found.error:
                raise SystemExit(found.error)
            ended, made = ended + 1, made + len(found.generated_tokens)
        return made

    return answer


if __name__ == "__main__":
    options = parser()
    options.add_argument("--dtype", required=True)
    options.add_argument("--mode", choices=["static", "continuous"], required=True)
    obey(options.parse_args(), load)
