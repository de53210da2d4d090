"""The check that a model, run by us, still gives what it gives by itself.

Two sequences of different lengths go through paged attention in two steps, as in a batch with chunked
prefill, and each alone through the model's own forward. A model that keeps a state between tokens, ignores
positions or lets neighbours in one row see each other does not pass.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from headrace.gpu_engine.attention.contract import RaggedBatch
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.foreign.decoder import TransformersDecoder
from headrace.gpu_engine.models.foreign.interface import NAME

BLOCK: Final = 8
LENGTHS: Final = (7, 4)
CUT: Final = (5, 1)
"""How many tokens of each sequence the first step takes."""

TOLERANCE: Final = {torch.float32: 1e-3, torch.float64: 1e-3}
HALF_TOLERANCE: Final = 0.1
"""Largest difference of any logit, as a share of the range of all."""


@torch.inference_mode()
def require_same_answers(model: Any, decoder: TransformersDecoder) -> None:
    """Raises ModelError where our run and the model's own differ by more than rounding."""
    sequences = _draw(decoder.config.vocab_size)
    ours, own = _run_paged(decoder, sequences), _run_alone(model, sequences)
    spread = own.max() - own.min()
    tolerance = TOLERANCE.get(decoder.dtype, HALF_TOLERANCE)
    if not (ours - own).abs().max() <= tolerance * spread:
        raise ModelError(
            f"Models of type '{decoder.config.architecture}' answer differently when their requests are "
            "computed together and in parts; they are not supported."
        )


def _draw(vocab_size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (length,), generator=generator) for length in LENGTHS]


def _run_alone(model: Any, sequences: list[torch.Tensor]) -> torch.Tensor:
    model.set_attn_implementation("eager")
    try:
        logits = [model(input_ids=tokens[None], use_cache=False).logits[0] for tokens in sequences]
    finally:
        model.set_attn_implementation(NAME)
    return torch.cat(logits).float()


def _run_paged(decoder: TransformersDecoder, sequences: list[torch.Tensor]) -> torch.Tensor:
    """Logits [T, vocabulary] in the order of `sequences`. Sequence s has block s + 1."""
    attention = ReferenceAttention(decoder.kv_spec(BLOCK), 1 + len(sequences))
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    for starts, ends in (((0, 0), CUT), (CUT, LENGTHS)):
        spans = [range(start, end) for start, end in zip(starts, ends, strict=True)]
        batch = _make_batch(spans)
        tokens = torch.cat([ids[span.start : span.stop] for ids, span in zip(sequences, spans, strict=True)])
        hidden = decoder.forward(tokens, batch.positions, attention.begin(batch))
        logits = decoder.logits(hidden).split([len(span) for span in spans])
        for part, rows in zip(parts, logits, strict=True):
            part.append(rows)
    return torch.cat([rows for part in parts for rows in part]).float()


def _make_batch(spans: list[range]) -> RaggedBatch:
    lengths = torch.tensor([len(span) for span in spans])
    positions = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    blocks = torch.arange(1, 1 + len(spans))
    return RaggedBatch(
        query_start=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
        context_lens=torch.tensor([span.stop for span in spans], dtype=torch.int32),
        block_tables=blocks[:, None].int(),
        slot_mapping=blocks.repeat_interleave(lengths) * BLOCK + positions,
        positions=positions,
        num_decodes=0,
        max_query_len=int(lengths.max()),
        max_context_len=max(span.stop for span in spans),
    )
