"""The reference backend against attention written out, one query and one head at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.attention.contract import KVSpec, RaggedBatch
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.inputs import build_inputs
from headrace.gpu_engine.scheduling.step import Chunk

torch.set_num_threads(1)

HEADS, KV_HEADS, DIM = 6, 2, 8


def spec_of(
    block_size: int,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    softcap: float | None = None,
) -> KVSpec:
    """Two layers, of which the second has the window."""
    return KVSpec(2, HEADS, KV_HEADS, DIM, 0.3, block_size, dtype, (None, window), softcap)


def written_out(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softcap: float | None = None
) -> torch.Tensor:
    """One query [H, D] over all that it sees [C, KVH, D], in float64."""

    def bend(score: float) -> float:
        return score if softcap is None else softcap * math.tanh(score / softcap)

    out = torch.empty(HEADS, DIM, dtype=torch.float64)
    for head in range(HEADS):
        k, v = (x[:, head // (HEADS // KV_HEADS)].double() for x in (keys, values))
        weights = [math.exp(bend(0.3 * float(q[head].double() @ row))) for row in k]
        out[head] = sum(w * row for w, row in zip(weights, v, strict=True)) / sum(weights)
    return out


sequences = st.lists(
    st.tuples(st.integers(0, 70), st.sampled_from([1, 1, 1, 2, 5, 20])), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=40)
@given(
    sequences,
    st.sampled_from([1, 4, 16]),
    st.sampled_from([None, None, 1, 7, 33]),
    st.sampled_from([None, None, 0.5]),
    st.integers(0, 2**31),
)
def test_any_step_over_any_past_equals_attention_written_out(
    lengths: list[tuple[int, int]], block_size: int, window: int | None, softcap: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    backend = ReferenceAttention(spec_of(block_size, window=window, softcap=softcap), 512)
    backend.keys[:, :-1] = torch.nan
    backend.values[:, :-1] = torch.nan
    blocks = iter((torch.randperm(511, generator=generator) + 1).tolist())
    tables = [[next(blocks) for _ in range(-(-(past + new) // block_size))] for past, new in lengths]
    pasts = [(past, 0, table) for (past, _), table in zip(lengths, tables, strict=True) if past]
    steps = [(new, past, table) for (past, new), table in zip(lengths, tables, strict=True)]
    history = attend(backend, pasts, block_size, generator)[1:] if pasts else (torch.empty(0),) * 2
    q_out, k, v = attend(backend, steps, block_size, generator)
    q, out = q_out
    row = past_row = 0
    for new, past, _ in steps:
        keys = torch.cat([history[0][past_row : past_row + past].view(-1, KV_HEADS, DIM), k[row : row + new]])
        values = torch.cat(
            [history[1][past_row : past_row + past].view(-1, KV_HEADS, DIM), v[row : row + new]]
        )
        for i in range(new):
            end = past + i + 1
            start = 0 if window is None else max(0, end - window)
            expected = written_out(q[row + i], keys[start:end], values[start:end], softcap)
            torch.testing.assert_close(out[row + i].double(), expected, rtol=1e-5, atol=1e-5)
        row, past_row = row + new, past_row + past


def attend(
    backend: ReferenceAttention,
    steps: list[tuple[int, int, list[int]]],
    block_size: int,
    generator: torch.Generator,
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """One step of (new tokens, tokens before, table) with random inputs in layer 1: (q, out), k, v."""
    chunks = [Chunk("", [0] * new, start, table, False, SamplingParams()) for new, start, table in steps]
    batch = build_inputs(chunks, block_size).batch
    total = len(batch.positions)
    q, k, v = (torch.randn(total, h, DIM, generator=generator) for h in (HEADS, KV_HEADS, KV_HEADS))
    return (q, backend.begin(batch).attend(1, q, k, v)), k, v


def test_padded_tokens_and_sequences_change_nothing_but_the_null_block() -> None:
    """Two padded tokens of NaN in the null block and a padded sequence behind the live one."""
    backend = ReferenceAttention(spec_of(4), 8)
    batch = build_inputs([Chunk("", [0] * 3, 0, [5], False, SamplingParams())], 4).batch
    padded = RaggedBatch(
        query_start=torch.tensor([0, 3, 3], dtype=torch.int32),
        context_lens=torch.tensor([3, 0], dtype=torch.int32),
        block_tables=torch.tensor([[5], [0]], dtype=torch.int32),
        slot_mapping=torch.cat([batch.slot_mapping, torch.tensor([0, 1])]),
        positions=torch.cat([batch.positions, torch.tensor([0, 0])]),
        num_decodes=0,
        max_query_len=3,
        max_context_len=3,
    )
    q, k, v = (torch.randn(5, h, DIM) for h in (HEADS, KV_HEADS, KV_HEADS))
    for tensor in (q, k, v):
        tensor[3:] = torch.nan
    out = backend.begin(padded).attend(0, q, k, v)
    cache = backend.keys[0].clone()
    expected = backend.begin(batch).attend(0, q[:3], k[:3], v[:3])
    assert torch.equal(out[:3], expected)
    assert torch.isfinite(cache[4:]).all()
    assert (cache[[i for i in range(4, 33) if i not in (20, 21, 22)]] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_attended_in_their_own(dtype: torch.dtype) -> None:
    backend = ReferenceAttention(spec_of(4, dtype), 8)
    batch = build_inputs([Chunk("", [0] * 6, 0, [3, 2], False, SamplingParams())], 4).batch
    q, k, v = (torch.randn(6, h, DIM).to(dtype) for h in (HEADS, KV_HEADS, KV_HEADS))
    out = backend.begin(batch).attend(0, q, k, v)
    assert out.dtype == dtype
    torch.testing.assert_close(out[5].double(), written_out(q[5], k, v), rtol=2e-2, atol=2e-2)


def test_block_bytes_are_what_the_cache_takes() -> None:
    spec = spec_of(16)
    backend = ReferenceAttention(spec, 10)
    rows = (backend.keys.nbytes + backend.values.nbytes) // (10 * 16 + 1)
    assert ReferenceAttention.block_bytes(spec) == 16 * rows
    assert backend.num_blocks == 10
