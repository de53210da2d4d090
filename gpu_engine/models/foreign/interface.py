"""Our entry in transformers' attention interface, by which a model of theirs calls our attention.

A model's layers call the function that is registered under the name in its config. What serves them differs
from step to step, so every module of a model points to one `Seat`, and whoever sits there serves. (Arguments
of the model's forward do not always reach its layers.) transformers builds no mask for an implementation
that registers none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from torch.nn import Module
from transformers import AttentionInterface

NAME: Final = "headrace"
SEAT: Final = "headrace_seat"


class LayerAttention(Protocol):
    """The attention of one layer: `query` [1, H, T, D], `key` and `value` [1, KVH, T, D] → [1, T, H, D].
    `options`: what else the layer says, the scale of its scores for instance."""

    def __call__(
        self,
        layer: Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor: ...


class Seat:
    """Who serves the layers of one model at the moment. Not thread-safe."""

    def __init__(self, model: Module) -> None:
        self.server: LayerAttention | None = None
        for module in model.modules():
            setattr(module, SEAT, self)

    @contextmanager
    def taken_by(self, server: LayerAttention) -> Iterator[None]:
        self.server = server
        try:
            yield
        finally:
            self.server = None


def register() -> None:
    """Makes the name known to transformers; again and again changes nothing."""
    AttentionInterface.register(NAME, _attend)


def _attend(
    module: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """What the interface calls: a mask is the fifth argument, and the second result would be the weights."""
    server = getattr(module, SEAT).server
    assert server is not None, "the model is run by its decoder only"
    return server(module, query, key, value, attention_mask=args[0] if args else None, **options), None
