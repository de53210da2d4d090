"""LoRA adapters in PEFT's layout, and models that have one merged in, by PEFT's formula."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.engine import StepEngine
from tests.support.tiny_models import load_reference

ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP: Final = ("gate_proj", "up_proj", "down_proj")
FUSED: Final = ("qkv_proj", "gate_up_proj")
PREFIX: Final = "base_model.model."

Asked = tuple[Sequence[int], str | None]
"""A prompt, and the adapter that is to answer it."""


def save_adapter(
    folder: Path,
    model: Path,
    *,
    targets: Sequence[str] = (*ATTENTION, *MLP, *FUSED),
    rank: int = 4,
    seed: int = 0,
    ranks: Mapping[str, int] | None = None,
    **config: Any,
) -> Path:
    """A random adapter for a tiny model; returns its folder. `ranks`: of modules with another one; `config`:
    further fields of adapter_config.json."""
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if weight.dim() != 2 or module.rpartition(".")[2] not in targets or ".experts." in module:
            continue
        r = next((r for end, r in (ranks or {}).items() if module.endswith(end)), rank)
        outputs, inputs = weight.shape
        tensors[f"{PREFIX}{module}.lora_A.weight"] = 0.25 * torch.randn(r, inputs, generator=draw)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = 0.25 * torch.randn(outputs, r, generator=draw)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(targets)} | config
    write_adapter(folder, tensors, fields)
    return folder


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], fields: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(fields))


def load_merged(model: Path, adapter: Path | None) -> Any:
    """transformers' model, each adapted W replaced by W + scale B A, as `merge_and_unload` of PEFT does."""
    reference = load_reference(model)
    if adapter is None:
        return reference
    fields = json.loads((adapter / "adapter_config.json").read_bytes())
    tensors = load_file(adapter / "adapter_model.safetensors")
    weights = dict(reference.named_parameters())
    for name, a in tensors.items():
        module, found, _ = name.removeprefix(PREFIX).partition(".lora_A")
        if found:
            b = tensors[f"{PREFIX}{module}.lora_B.weight"]
            weights[f"{module}.weight"].data += _scale(fields, module, len(a)) * (b @ a)
    return reference


def _scale(fields: Mapping[str, Any], module: str, rank: int) -> float:
    alphas = fields.get("alpha_pattern", {})
    alpha = next((own for end, own in alphas.items() if module.endswith(end)), fields["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank))


def answer_all(engine: StepEngine, asked: Sequence[Asked], tokens: int) -> tuple[list[list[int]], list[int]]:
    """Greedy tokens of each, all side by side, and how many prompt tokens of each came from the cache."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for i, (prompt, adapter) in enumerate(asked):
        request = EngineRequest(id=str(i), prompt_ids=list(prompt), params=params, adapter=adapter)
        assert engine.add(request) is None
    answers: list[list[int]] = [[] for _ in asked]
    cached = [0] * len(asked)
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            answers[int(output.id)] += output.token_ids
            cached[int(output.id)] = output.cached_tokens
    engine.check_invariants()
    return answers, cached
