"""The native decoder computes what the torch decoder computes, for every family and any cut of the work."""

from pathlib import Path

import pytest
import torch

from headrace.gpu_engine.attention.contract import AttentionBackend
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.inputs import build_inputs
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.layers import GatedMLP
from headrace.gpu_engine.models.load import load_model
from headrace.gpu_engine.native.attention import NativeAttention, suits
from headrace.gpu_engine.native.declarations import Format
from headrace.gpu_engine.native.decoder import NativeDecoder, can_run
from headrace.gpu_engine.native.pool import Pool
from headrace.gpu_engine.scheduling.step import Chunk
from tests.support.drive import GREEDY
from tests.support.native import compiled, pool_of
from tests.support.tiny_models import CONFIGS, TinyModel

pytestmark = compiled

BLOCK = 16
TABLES = {"a": [5, 2, 9, 4, 11, 6], "b": [7, 8, 1, 10, 3], "c": [12]}
A, B, C = list(range(5, 72)), list(range(9, 71)), [3, 4, 8]
"""Three sequences; the longest goes beyond every window."""

Pieces = list[tuple[str, int, int]]  # of which sequence, from where, to where
TOGETHER: list[Pieces] = [
    [("a", 0, 65), ("b", 0, 31)],
    [("c", 0, 2), ("b", 31, 61), ("a", 65, 66)],
    [("a", 66, 67), ("b", 61, 62), ("c", 2, 3)],
]
ALONE: list[Pieces] = [[("a", 0, 67)], [("b", 0, 62)], [("c", 0, 3)]]
CRUMBS: list[Pieces] = [
    [(name, i, min(i + 9, n))] for name, n in (("a", 67), ("b", 62), ("c", 3)) for i in range(0, n, 9)
]


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_of(2)


def torch_decoder(folder: Path) -> Decoder:
    decoder = load_model(str(folder), torch.float32).decoder
    assert isinstance(decoder, Decoder)
    return decoder


def native_of(
    decoder: Decoder, pool: Pool, form: Format, dtype: torch.dtype
) -> tuple[NativeDecoder, NativeAttention]:
    """With NaN wherever nothing has been written."""
    native = NativeDecoder(decoder, pool, form, dtype)
    attention = NativeAttention(pool, native.kv_spec(BLOCK), 16)
    attention.keys.fill_(torch.nan)
    attention.values.fill_(torch.nan)
    return native, attention


@torch.inference_mode()
def logits_of(
    decoder: CausalDecoder, attention: AttentionBackend, steps: list[Pieces]
) -> dict[str, torch.Tensor]:
    """Logits [tokens, vocabulary] of each sequence."""
    tokens = {"a": A, "b": B, "c": C}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in tokens}
    for pieces in steps:
        ordered = sorted(pieces, key=lambda piece: piece[2] - piece[1])
        chunks = [
            Chunk(name, tokens[name][start:end], start, TABLES[name][: -(-end // BLOCK)], True, GREEDY)
            for name, start, end in ordered
        ]
        inputs = build_inputs(chunks, BLOCK)
        hidden = decoder.forward(inputs.token_ids, inputs.batch.positions, attention.begin(inputs.batch))
        rows = decoder.logits(hidden).split([end - start for _, start, end in ordered])
        for (name, _, _), part in zip(ordered, rows, strict=True):
            found[name].append(part.clone())
    return {name: torch.cat(parts) for name, parts in found.items() if parts}


def worst_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest relative error of a sequence's logits, by norms."""
    return max(float((actual[name] - one).norm() / one.norm()) for name, one in expected.items())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_gives_the_torch_decoders_logits(tiny_model: TinyModel, pool: Pool, name: str) -> None:
    decoder = torch_decoder(tiny_model(name))
    assert can_run(decoder.config)
    assert suits(decoder.kv_spec(BLOCK))
    expected = logits_of(decoder, ReferenceAttention(decoder.kv_spec(BLOCK), 16), TOGETHER)
    for form, dtype, bound in ((Format.FLOAT32, torch.float32, 2e-5), (Format.INT16, torch.bfloat16, 5e-2)):
        actual = logits_of(*native_of(torch_decoder(tiny_model(name)), pool, form, dtype), TOGETHER)
        assert worst_error(actual, expected) < bound, form.name


@pytest.mark.parametrize(
    ("form", "bound"),
    [(Format.BF16, 2e-2), (Format.INT16, 5e-3), (Format.INT8, 2e-1), (Format.INT4, 0.7)],
)
def test_each_format_of_weights_costs_no_more_than_its_bits(
    tiny_model: TinyModel, pool: Pool, form: Format, bound: float
) -> None:
    decoder = torch_decoder(tiny_model("llama"))
    expected = logits_of(decoder, ReferenceAttention(decoder.kv_spec(BLOCK), 16), TOGETHER)
    actual = logits_of(*native_of(decoder, pool, form, torch.float32), TOGETHER)
    assert worst_error(actual, expected) < bound


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-moe-mixed"])
def test_logits_are_the_same_bit_for_bit_alone_together_and_in_crumbs(
    tiny_model: TinyModel, pool: Pool, name: str, form: Format
) -> None:
    native, attention = native_of(torch_decoder(tiny_model(name)), pool, form, torch.bfloat16)
    alone = logits_of(native, attention, ALONE)
    for steps in (TOGETHER, CRUMBS):
        for sequence, logits in logits_of(native, attention, steps).items():
            assert torch.equal(logits, alone[sequence]), sequence


def test_layers_are_read_as_they_are_packed_and_not_before(tiny_model: TinyModel, pool: Pool) -> None:
    folder = tiny_model("llama")
    lazy = load_model(str(folder), torch.float32, lazily=True).decoder
    assert isinstance(lazy, Decoder)
    assert lazy.layers == []
    packed = logits_of(*native_of(lazy, pool, Format.INT4, torch.float32), ALONE)
    assert lazy.layers == []
    expected = logits_of(*native_of(torch_decoder(folder), pool, Format.INT4, torch.float32), ALONE)
    assert all(torch.equal(packed[name], logits) for name, logits in expected.items())


def test_weights_that_bf16_holds_are_kept_in_half_the_memory_and_give_the_same(
    tiny_model: TinyModel, pool: Pool
) -> None:
    def rounded() -> Decoder:
        decoder = torch_decoder(tiny_model("llama"))
        for layer in decoder.layers:
            assert isinstance(layer.mlp, GatedMLP)
            for part in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
                part.weight.copy_(part.weight.bfloat16())
        return decoder

    whole = native_of(torch_decoder(tiny_model("llama")), pool, Format.FLOAT32, torch.float32)[0]
    halved, attention = native_of(rounded(), pool, Format.FLOAT32, torch.float32)
    assert halved.num_bytes < 0.8 * whole.num_bytes
    reference = rounded()
    expected = logits_of(reference, ReferenceAttention(reference.kv_spec(BLOCK), 16), ALONE)
    torch.testing.assert_close(logits_of(halved, attention, ALONE), expected, rtol=1e-4, atol=1e-4)
