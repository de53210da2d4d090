"""Adapters through the offline interface, over a real model and its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from headrace.gpu_engine.llm import LLM, EngineUnusable, SamplingParams
from tests.support.lora import load_merged, save_adapter
from tests.support.reference_answers import Comparison, answer_greedily
from tests.support.tiny_models import TinyModel
from tests.unit.text.tokenizers_for_tests import byte_level_backend

torch.set_num_threads(1)

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def model(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """The tiny Llama with a tokenizer."""
    folder = Path(shutil.copytree(tiny_model("llama"), tmp_path / "tiny"))
    PreTrainedTokenizerFast(tokenizer_object=byte_level_backend()).save_pretrained(folder)
    return folder


def test_prompts_with_adapters_of_their_own_are_one_batch(model: Path, tmp_path: Path) -> None:
    folders = {name: save_adapter(tmp_path / name, model, seed=i) for i, name in enumerate(("sql", "poems"))}
    asked = [(tuple(range(3 + i, 30)), name) for i, name in enumerate(["sql", None, "poems", "sql"])]
    comparison = Comparison()
    modules = {name: str(folder) for name, folder in folders.items()}
    with LLM(str(model), lora_modules=modules, num_kv_blocks=40, threads=1) as llm:
        prompts, names = [prompt for prompt, _ in asked], [name for _, name in asked]
        answers = llm.generate_batch(prompts, GREEDY, adapter=names)
        assert len({llm.info.fingerprint, *llm.info.adapters.values()}) == 3
        bare, adapted = (llm.embed([[3, 4, 5]], adapter=name)[0].embedding for name in (None, "sql"))
        assert len(bare) == len(adapted) == 64
        assert bare != adapted
        weights = [folder / "adapter_model.safetensors" for folder in folders.values()]
        assert llm.info.adapter_bytes == sum(t.nbytes for file in weights for t in load_file(file).values())
    for answer, (prompt, name) in zip(answers, asked, strict=True):
        reference = load_merged(model, None if name is None else folders[name])
        expected = answer_greedily(reference, [prompt], 8)[prompt]
        comparison.compare(str(name), answer.token_ids, expected)
    comparison.check()


def test_other_weights_under_the_same_name_have_another_fingerprint(model: Path, tmp_path: Path) -> None:
    """It is what keeps one from going on with the other's answers."""
    prints = set()
    for seed in (1, 2):
        folder = save_adapter(tmp_path / f"sql-{seed}", model, seed=seed)
        with LLM(str(model), lora_modules={"sql": str(folder)}, num_kv_blocks=40, threads=1) as llm:
            prints.add((llm.info.fingerprint, llm.info.adapters["sql"]))
    assert len(prints) == 2
    assert len({bare for bare, _ in prints}) == 1, (
        "the bare model's answers go on whatever adapters there are"
    )


def test_what_is_wrong_with_an_adapter_is_said_at_the_start(model: Path) -> None:
    with pytest.raises(EngineUnusable, match=r"LoRA adapter sql: .* has no adapter_config\.json"):
        LLM(str(model), lora_modules={"sql": "nowhere"})
