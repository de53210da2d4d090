"""What the layers of a model ask of attention, learnt by running it once on a few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.nn import Module

from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.foreign.config import ForeignConfig

UNSERVED: Final = {
    "s_aux": "adds sinks to its attention",
    "position_bias": "adds a bias to its attention by position",
    "attention_mask": "makes masks of its own",
}


@dataclass(frozen=True, slots=True)
class LayerTraits:
    """One layer, as its call tells. `window` counts the token itself, as `KVSpec` does."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(slots=True)
class Recorder:
    """Sits in a model's seat for one run, and notes its layers in their order."""

    layers: dict[Module, LayerTraits] = field(default_factory=dict)

    def __call__(
        self, layer: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        if layer in self.layers:
            raise ModelError("The model attends twice in one layer, which is not supported.")
        self.layers[layer] = _read_traits(layer, query, key, value, options)
        return torch.zeros_like(query).transpose(1, 2)


def _read_traits(
    layer: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> LayerTraits:
    for name, what in UNSERVED.items():
        if options.get(name) is not None:
            raise ModelError(f"The model {what}, which is not supported.")
    causal = options.get("is_causal")
    if not (getattr(layer, "is_causal", True) if causal is None else causal):
        raise ModelError("The model attends in both directions, so it cannot write token by token.")
    (_, heads, _, head_dim), (_, kv_heads, _, _) = query.shape, key.shape
    if value.shape != key.shape or key.shape[-1] != head_dim or heads % kv_heads:
        raise ModelError("The model's heads of queries, keys and values differ in size: not supported.")
    return LayerTraits(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=options.get("scaling") or head_dim**-0.5,
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
    )


def no_interface(architecture: str) -> ModelError:
    """The error of a model whose layers never ask us."""
    return ModelError(
        f"Models of type '{architecture}' do not use transformers' attention interface, so their attention "
        "cannot be paged; they are not supported."
    )


def refuse_unlike(layers: Mapping[Module, LayerTraits], config: ForeignConfig) -> None:
    """Refuses layers that differ in more than their window, or in their window from what the config says."""
    name, traits = config.architecture, list(layers.values())
    if not traits:
        raise no_interface(name)
    if len({(x.num_heads, x.num_kv_heads, x.head_dim, x.scale, x.softcap) for x in traits}) > 1:
        raise ModelError(f"The layers of models of type '{name}' differ in their heads: not supported.")
    windows = tuple(layer.window for layer in traits)
    if windows != (config.windows or (None,) * len(traits)):
        raise ModelError(
            f"Models of type '{name}' do not tell attention which of their layers see a window only; "
            "they are not supported."
        )
