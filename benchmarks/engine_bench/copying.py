"""Requests whose answers copy: passages of prose, each with its beginning once more: a model goes on so."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.engine_bench.workload import Row, Workload
from headrace.gpu_engine.text.load import load_tokenizer

TEXT: Final = Path(__file__).parent / "prose.txt"


def draw_copying(model: str, count: int, tokens: int) -> Workload:
    """`count` requests in the tokens of a model's folder, each for `tokens` tokens; passages come again where
    there are too few."""
    tokenizer = load_tokenizer(model)
    passages = [tokenizer.encode(passage + "\n\n") for passage in TEXT.read_text().split("\n\n")]
    prompts = [passage + passage[: len(passage) // 3] for passage in passages if len(passage) > 30]
    rows = [Row(prompt, tokens) for prompt in islice(cycle(prompts), count)]
    return Workload(rows, rows[0].prompt, tokens)
