"""The decoder of the families written for speed. What differs between them is in its parts, which
`assemble` chooses by the config."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.models.assemble import build_layer, choose_embedding, choose_head, choose_norm
from headrace.gpu_engine.models.blocks import Layer
from headrace.gpu_engine.models.config import ModelConfig, RopeConfig
from headrace.gpu_engine.models.layers import Part
from headrace.gpu_engine.models.rope import Rope
from headrace.gpu_engine.models.weights.tensors import Tensors


class Decoder:
    """Token ids in, hidden states out; logits only for the rows that need them. `lazily`: layers are read
    only when `take_layers` or `read_layers` asks for them."""

    def __init__(self, config: ModelConfig, tensors: Tensors, *, lazily: bool = False) -> None:
        self.config = config
        self.ropes = [Rope(rope, config.head_dim) for rope in _list_ropes(config)]
        self.embeddings = tensors.take("model.embed_tokens.weight")
        self.embed: Part = choose_embedding(config, self.embeddings)
        self.layers: list[Layer] = []
        self._unread = (build_layer(config, tensors, i) for i in range(config.num_layers))
        self.layer_ropes = [int(i in config.local_layers) for i in range(config.num_layers)]
        self.norm = choose_norm(config, tensors.take("model.norm.weight"))
        head = self.embeddings if config.tied_embeddings else tensors.take("lm_head.weight")
        self.head = choose_head(config, head)
        if not lazily:
            self.read_layers()

    def read_layers(self) -> None:
        """All of them, for `forward`. Raises ModelError where the file is damaged."""
        self.layers = list(self.take_layers())

    def take_layers(self) -> Iterator[Layer]:
        """One after the other, each read when it is asked for if it was not before, and kept no longer here:
        for who makes something else of them. Raises ModelError where the file is damaged."""
        while self.layers:
            yield self.layers.pop(0)
        yield from self._unread

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this model."""
        config = self.config
        return KVSpec(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale or config.head_dim**-0.5,
            block_size=block_size,
            dtype=self.dtype,
            windows=config.windows,
            softcap=config.attention_softcap,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """Hidden states [T, hidden] after the last norm, for int64 `token_ids` and `positions` [T]. A row
        with NaN among its own keys or values is NaN itself."""
        x = self.embed(token_ids)
        rotations = [rope.rotation(positions, self.dtype) for rope in self.ropes]
        for layer, rope in zip(self.layers, self.layer_ropes, strict=True):
            x = layer(x, rotations[rope], step)
        return self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [rows, vocabulary], for rows of `forward`'s result."""
        return self.head(hidden)


def _list_ropes(config: ModelConfig) -> list[RopeConfig]:
    return [config.rope] if config.local_rope is None else [config.rope, config.local_rope]
