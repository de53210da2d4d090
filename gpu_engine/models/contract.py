"""What the runner asks of a decoder, whatever computes it."""

from __future__ import annotations

from typing import Protocol

import torch

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention


class ModelSizes(Protocol):
    """What an engine needs to know of a model: the longest sequence it was made for, in tokens, how many
    tokens it knows, and how many numbers a row of hidden states has (0: it does not say)."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...


class CausalDecoder(Protocol):
    """Token ids in, hidden states out; logits only for the rows that need them."""

    @property
    def config(self) -> ModelSizes: ...

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this model."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """Hidden states [T, hidden] after the last norm, for int64 `token_ids` and `positions` [T]. A row
        with NaN among its own keys or values is NaN itself."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [rows, vocabulary], for rows of `forward`'s result."""
