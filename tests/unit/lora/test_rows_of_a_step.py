"""What a step computes for a row depends on its own adapter and context alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.runner import ModelRunner, load_runner
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan
from tests.support.drive import GREEDY
from tests.support.lora import save_adapter
from tests.support.native import compiled
from tests.support.tiny_models import TinyModel

torch.set_num_threads(1)

BLOCK = 16
TOKENS = {"a": list(range(5, 72)), "b": list(range(9, 71)), "c": list(range(40, 70)), "d": [3, 4, 8]}
ADAPTERS = {"a": "wide", "b": "narrow", "c": "wide", "d": None}
TABLES = {"a": [5, 2, 9, 4, 11], "b": [7, 8, 1, 10], "c": [13, 14], "d": [12]}

Pieces = list[tuple[str, int, int]]  # of which sequence, from where, to where
TOGETHER: list[Pieces] = [
    [("a", 0, 65), ("b", 0, 31), ("c", 0, 29)],
    [("d", 0, 2), ("b", 31, 61), ("a", 65, 66)],
    [("a", 66, 67), ("b", 61, 62), ("c", 29, 30), ("d", 2, 3)],
]
ALONE: list[Pieces] = [[(name, 0, len(tokens))] for name, tokens in TOKENS.items()]
CRUMBS: list[Pieces] = [
    [(name, i, min(i + 9, len(tokens)))] for name, tokens in TOKENS.items() for i in range(0, len(tokens), 9)
]


def runner_of(model: Path, folder: Path, **config: object) -> ModelRunner:
    modules = {
        "wide": str(save_adapter(folder / "wide", model, rank=19, seed=1)),
        "narrow": str(
            save_adapter(folder / "narrow", model, targets=["q_proj", "up_proj", "qkv_proj"], rank=3, seed=2)
        ),
    }
    fields = {"model": str(model), "num_kv_blocks": 16, "lora_modules": modules, **config}
    return load_runner(EngineConfig.model_validate(fields))


def hidden_of(runner: ModelRunner, steps: list[Pieces], *, bare: bool = False) -> dict[str, torch.Tensor]:
    """Hidden states of each sequence; `bare`: without their adapters."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in TOKENS}
    for pieces in steps:
        ordered = sorted(pieces, key=lambda piece: piece[2] - piece[1])
        chunks = [
            Chunk(
                request_id=name,
                token_ids=TOKENS[name][start:end],
                start=start,
                block_table=TABLES[name][: -(-end // BLOCK)],
                samples=True,
                params=GREEDY,
                adapter=None if bare else ADAPTERS[name],
            )
            for name, start, end in ordered
        ]
        computed = runner.compute(StepPlan(1, chunks))
        assert computed is not None
        rows = computed[1].split([end - start for _, start, end in ordered])
        for (name, _, _), part in zip(ordered, rows, strict=True):
            found[name].append(part.clone())
    return {name: torch.cat(parts) for name, parts in found.items() if parts}


@compiled
@pytest.mark.parametrize("model", ["llama-biased", "gemma3", "qwen3-moe-mixed"])
@pytest.mark.parametrize("form", ["float32", "int16", "int8", "int4"])
def test_the_native_decoders_are_the_same_bit_for_bit_alone_together_and_in_crumbs(
    tiny_model: TinyModel, tmp_path: Path, model: str, form: str
) -> None:
    runner = runner_of(tiny_model(model), tmp_path, backend="native", weight_format=form, threads=2)
    alone = hidden_of(runner, ALONE)
    for steps in (TOGETHER, CRUMBS):
        for name, hidden in hidden_of(runner, steps).items():
            assert torch.equal(hidden, alone[name]), name
    bare = hidden_of(runner, TOGETHER, bare=True)
    assert torch.equal(bare["d"], alone["d"]), "adapters of others change the bare model"
    assert all((bare[name] - alone[name]).abs().max() > 0.01 for name in "abc")


@compiled
@pytest.mark.parametrize("model", ["llama-biased", "phi3", "gemma3", "mistral-window"])
def test_the_native_decoder_gives_what_torch_gives(tiny_model: TinyModel, tmp_path: Path, model: str) -> None:
    torchs = runner_of(tiny_model(model), tmp_path, backend="torch")
    natives = runner_of(tiny_model(model), tmp_path, backend="native")
    torch.testing.assert_close(
        hidden_of(natives, TOGETHER), hidden_of(torchs, TOGETHER), rtol=1e-3, atol=1e-3
    )
