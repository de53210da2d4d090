"""A model of transformers as a decoder of ours: a ragged step is one row of tokens with their positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.foreign.config import ForeignConfig
from headrace.gpu_engine.models.foreign.interface import Seat
from headrace.gpu_engine.models.foreign.traits import Recorder, refuse_unlike


@dataclass(frozen=True, slots=True)
class PagedLayers:
    """Serves the layers of one step by paged attention; `numbers` are the layers' in the KV cache."""

    numbers: dict[Module, int]
    step: StepAttention

    def __call__(
        self, layer: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return self.step.attend(self.numbers[layer], *rows)[None]


class TransformersDecoder:
    """Implements `CausalDecoder` over a `…ForCausalLM` model, which is loaded with our attention.

    The model keeps no cache of its own and builds no mask. Raises ModelError where it cannot be run so.
    """

    def __init__(self, config: ForeignConfig, model: Any) -> None:
        self.config = config
        self.model = model
        self._seat = Seat(model)
        self._base = model.base_model
        if self._base is model:
            raise ModelError(
                f"Models of type '{config.architecture}' have no part that ends before the head."
            )
        recorder, output = self._try()
        self._head = _cut_head(model, type(output))
        self._layers = recorder.layers
        self._numbers = {layer: i for i, layer in enumerate(self._layers)}

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def num_bytes(self) -> int:
        """Size of the weights; those that are tied count once."""
        return sum(weights.nbytes for weights in self.model.parameters())

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this model."""
        traits = list(self._layers.values())
        windows = tuple(self._outgrown(layer.window) for layer in traits)
        return KVSpec(
            num_layers=len(traits),
            num_heads=traits[0].num_heads,
            num_kv_heads=traits[0].num_kv_heads,
            head_dim=traits[0].head_dim,
            scale=traits[0].scale,
            block_size=block_size,
            dtype=self.dtype,
            windows=windows if any(windows) else (),
            softcap=traits[0].softcap,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """Hidden states [T, hidden] after the last norm, for int64 `token_ids` and `positions` [T]."""
        with self._seat.taken_by(PagedLayers(self._numbers, step)):
            hidden: torch.Tensor = self._run_base(token_ids, positions).last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [rows, vocabulary], for rows of `forward`'s result."""
        scores: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return scores[0]

    def _run_base(self, token_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        return self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)

    @torch.inference_mode()
    def _try(self) -> tuple[Recorder, Any]:
        """Runs the model once, to learn of its layers and of what it gives."""
        recorder, positions = Recorder(), torch.arange(2)
        with self._seat.taken_by(recorder):
            output = self._run_base(positions % self.config.vocab_size, positions)
        refuse_unlike(recorder.layers, self.config)
        return recorder, output

    def _outgrown(self, window: int | None) -> int | None:
        """A window that no sequence outgrows is none: attention without windows is quicker."""
        return None if window is None or window >= self.config.max_context else window


class PassThrough(Module):
    """Stands where a model's base was: gives back the hidden states it is handed, in a result of the base's
    type."""

    def __init__(self, output_type: Callable[..., Any]) -> None:
        super().__init__()
        self.output_type = output_type

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **options: Any) -> Any:
        return self.output_type(last_hidden_state=inputs_embeds)


def _cut_head(model: Any, output_type: Callable[..., Any]) -> Any:
    """The model without its base, sharing all else: whatever it does with hidden states to make logits of
    them (scales, caps, biases) is done by its own code."""
    head = copy.copy(model)
    head._modules = dict(model._modules)
    head._modules[model.base_model_prefix] = PassThrough(output_type)
    return head
