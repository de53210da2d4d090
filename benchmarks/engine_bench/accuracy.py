"""How much our weight formats change what a model says: against float32, token by token over a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.distance import Distance, compare
from benchmarks.engine_bench.models import SMOLLM2, model_folder
from benchmarks.engine_bench.our_parts import load_parts, our_config
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.targets import TOP1_INT8
from benchmarks.engine_bench.with_headrace import forced
from benchmarks.shared.report import Row, Target
from headrace.gpu_engine.inputs import build_inputs
from headrace.gpu_engine.scheduling.step import Chunk
from headrace.gpu_engine.text.load import load_tokenizer

NAME: Final = "accuracy"
_TEXT: Final = Path(__file__).parent / "prose.txt"
_OURS: Final = ("float32", "int16", "int8", "int4")
_BF16: Final = "transformers bfloat16"
_KL_UNIT: Final = "nat / 10⁶"


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    """The reference is transformers in float32; bfloat16 there is what most people run."""
    model = str(model_folder(SMOLLM2, settings.cache))
    most = 64 if settings.quick else 2048
    (positions, found), _ = apart(measure, model, settings.threads, most)
    usual = found[_BF16].divergence
    for name, distance in found.items():
        note = f"{SMOLLM2.name}, {positions} tokens of English, against float32 in transformers"
        target = Target("at most", 1e6 * usual) if name == "int16" else None
        yield Row(NAME, f"mean divergence, {name}", 1e6 * distance.divergence, _KL_UNIT, target, note)
        bound = TOP1_INT8 if name == "int8" else None
        yield Row(NAME, f"same first choice, {name}", 100 * distance.same_choice, "%", bound)


def measure(model: str, threads: int, most: int) -> tuple[int, dict[str, Distance]]:
    """Of the text's first `most` tokens: how many there were, and the distances by format."""
    torch.set_num_threads(threads)
    ids = load_tokenizer(model).encode(_TEXT.read_text())[:most]
    reference = _usual_logits(model, ids, torch.float32)
    found = {_BF16: compare(reference, _usual_logits(model, ids, torch.bfloat16))}
    for form in _OURS:
        found[form] = compare(reference, our_logits(model, ids, form, threads))
    return len(ids), found


@torch.inference_mode()
def _usual_logits(model: str, ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    decoder = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    logits: torch.Tensor = decoder(torch.tensor([ids])).logits[0].float()
    return logits


@torch.inference_mode()
def our_logits(model: str, ids: list[int], form: str, threads: int) -> torch.Tensor:
    """All positions in one step, [T, V]."""
    config = our_config(model, threads, weight_format=form, pin_threads=False)
    num_blocks = 1 + -(-len(ids) // config.block_size)
    parts = load_parts(config, num_blocks)
    chunk = Chunk("text", ids, 0, list(range(1, num_blocks)), samples=False, params=forced(1))
    inputs = build_inputs([chunk], config.block_size)
    step = parts.attention.begin(inputs.batch)
    hidden = parts.decoder.forward(inputs.token_ids, inputs.batch.positions, step)
    return parts.decoder.logits(hidden).float()
