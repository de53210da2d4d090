"""What families add to a decoder gives what it gives in transformers; test_runner compares tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from headrace.gpu_engine.attention.contract import RaggedBatch
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.experts import MixtureOfExperts
from headrace.gpu_engine.models.layers import Linear
from headrace.gpu_engine.models.load import load_model
from tests.support.tiny_models import CONFIGS, load_reference, save_tiny_model

torch.set_num_threads(1)


@torch.inference_mode()
def logits_of(decoder: CausalDecoder, prompt: list[int]) -> torch.Tensor:
    """Logits [T, vocabulary] of one sequence, computed at once in one block."""
    batch = RaggedBatch(
        query_start=torch.tensor([0, len(prompt)], dtype=torch.int32),
        context_lens=torch.tensor([len(prompt)], dtype=torch.int32),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        slot_mapping=len(prompt) + torch.arange(len(prompt)),
        positions=torch.arange(len(prompt)),
        num_decodes=0,
        max_query_len=len(prompt),
        max_context_len=len(prompt),
    )
    step = ReferenceAttention(decoder.kv_spec(len(prompt)), 2).begin(batch)
    return decoder.logits(decoder.forward(torch.tensor(prompt), batch.positions, step))


@torch.inference_mode()
def reference_logits(folder: Path, prompt: list[int], dtype: torch.dtype) -> torch.Tensor:
    reference: Any = load_reference(folder).to(dtype)
    reference.set_attn_implementation("eager")
    logits: torch.Tensor = reference(torch.tensor([prompt])).logits[0]
    return logits


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str, seed: int) -> None:
    folder = save_tiny_model(name, tmp_path, seed)
    prompt = torch.randint(384, (70,), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = reference_logits(folder, prompt, torch.float32)
    ours = logits_of(load_model(str(folder), torch.float32).decoder, prompt)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "qwen3-moe", "phi3-long"])
def test_half_precision_rounds_about_where_transformers_does(tmp_path: Path, name: str) -> None:
    folder, prompt = save_tiny_model(name, tmp_path), list(range(3, 43))
    exact = reference_logits(folder, prompt, torch.float32)
    theirs = (reference_logits(folder, prompt, torch.bfloat16).float() - exact).abs().mean()
    decoder = load_model(str(folder), torch.bfloat16).decoder
    assert logits_of(decoder, prompt).dtype == torch.bfloat16
    assert (logits_of(decoder, prompt).float() - exact).abs().mean() < 1.2 * theirs


# --------------------------------------------------------------------------------------------- LongRoPE


def test_the_long_factors_serve_where_longer_sequences_are_asked_for(tmp_path: Path) -> None:
    folder = save_tiny_model("phi3-long", tmp_path)
    prompt = torch.randint(384, (230,), generator=torch.Generator().manual_seed(5)).tolist()
    short, long = (load_model(str(folder), torch.float32, longest=n) for n in (200, 201))
    assert (short.decoder.config.max_context, long.decoder.config.max_context) == (200, 512)
    assert short.fingerprint != long.fingerprint
    expected = reference_logits(folder, prompt, torch.float32)
    atol = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits_of(long.decoder, prompt), expected, rtol=0, atol=atol)


def test_models_without_long_factors_are_as_long_as_they_are(tmp_path: Path) -> None:
    folder = save_tiny_model("phi3", tmp_path)
    one, two = (load_model(str(folder), torch.float32, longest=n) for n in (None, 10_000))
    assert one.fingerprint == two.fingerprint
    assert two.decoder.config.max_context == 512


# ---------------------------------------------------------------------------------------------- experts


def draw_experts(count: int, per_token: int, normalised: bool, seed: int) -> MixtureOfExperts:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    router = Linear(draw(count, 8))
    return MixtureOfExperts(router, draw(count, 12, 8), draw(count, 8, 6), per_token, normalised, silu)


def written_out(experts: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """One token at a time, in float64."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for row, token in zip(out, x.double(), strict=True):
        probabilities = (experts.router.weight.double() @ token).softmax(dim=0)
        weights, chosen = probabilities.topk(experts.per_token)
        weights = weights / weights.sum() if experts.normalised else weights
        for weight, expert in zip(weights, chosen.tolist(), strict=True):
            gate, up = (experts.gate_up[expert].double() @ token).chunk(2)
            row += weight * (experts.down[expert].double() @ (silu(gate) * up))
    return out


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 20),
    count=st.integers(1, 9),
    share=st.floats(0, 1),
    normalised=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_grouping_tokens_by_expert_equals_each_token_by_itself(
    tokens: int, count: int, share: float, normalised: bool, seed: int
) -> None:
    experts = draw_experts(count, 1 + int(share * (count - 1)), normalised, seed)
    x = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(seed + 1))
    torch.testing.assert_close(experts(x).double(), written_out(experts, x), rtol=1e-4, atol=1e-4)


def test_an_expert_that_no_token_chose_is_not_computed() -> None:
    experts, x = draw_experts(8, 2, True, seed=1), torch.randn(3, 8)
    chosen = set(experts.router(x).topk(2).indices.flatten().tolist())
    expected = experts(x)
    for expert in set(range(8)) - chosen:
        experts.gate_up[expert] = torch.nan
    assert torch.equal(experts(x), expected)


def test_layers_are_dense_or_have_experts_as_the_config_says(tmp_path: Path) -> None:
    decoder = load_model(str(save_tiny_model("qwen3-moe-mixed", tmp_path)), torch.float32).decoder
    assert isinstance(decoder, Decoder)
    assert [isinstance(layer.mlp, MixtureOfExperts) for layer in decoder.layers] == [True, False, True]
