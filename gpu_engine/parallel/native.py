"""A rank's share of a decoder on the native kernels, layer by layer.

`NativeDecoder` computes a whole step in one call, in which nobody could sum over ranks. Here each product is
a call of its own, and so is attention: the same kernels, formats and rounding, with sums between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.models.blocks import Layer, SandwichLayer
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.layers import GatedMLP, Linear, Part
from headrace.gpu_engine.native.attention import NativeStep
from headrace.gpu_engine.native.declarations import Format
from headrace.gpu_engine.native.linear import PackedLinear, multiply
from headrace.gpu_engine.native.parts import GATES, norm_weight, pack_head, pack_part
from headrace.gpu_engine.native.pool import Pool
from headrace.gpu_engine.native.rotation import RotationTable
from headrace.gpu_engine.parallel.group import RankGroup


@dataclass(frozen=True, slots=True)
class Kernels:
    """What all layers of a share compute with: the threads, how weights are kept, and the other ranks."""

    pool: Pool
    form: Format
    group: RankGroup

    def pack(self, part: Linear, *, gated: bool = False) -> PackedLinear:
        return pack_part(self.pool, part, self.form, gated=gated)


class NativeLayer:
    """One layer's share. Is called as the layer of torch parts that it is made from, but that `rotation` is a
    table."""

    def __init__(self, layer: Layer, index: int, config: ModelConfig, kernels: Kernels) -> None:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, GatedMLP), "ask can_run first"
        self._index, self._eps, self._kernels = index, config.norm_eps, kernels
        self._gate = GATES[config.activation]
        self._qkv, self._output = kernels.pack(attention.qkv), kernels.pack(attention.output)
        self._gate_up, self._down = kernels.pack(mlp.gate_up, gated=True), kernels.pack(mlp.down)
        self._attention_norm, self._mlp_norm = norm_weight(layer.attention_norm), norm_weight(layer.mlp_norm)
        self._query_norm, self._key_norm = norm_weight(attention.q_norm), norm_weight(attention.k_norm)
        self._post_norms: tuple[Part | None, Part | None] = (None, None)
        if isinstance(layer, SandwichLayer):
            self._post_norms = layer.attention_post_norm, layer.mlp_post_norm

    @property
    def num_bytes(self) -> int:
        packed = (self._qkv, self._output, self._gate_up, self._down)
        return sum(one.num_bytes for one in packed)

    def __call__(self, x: torch.Tensor, rotation: RotationTable, step: StepAttention) -> torch.Tensor:
        """x float32 [T, hidden]. The steps of `Forward` in decoder.cpp."""
        assert isinstance(step, NativeStep)
        pool, (after_attention, after_mlp) = self._kernels.pool, self._post_norms
        qkv = multiply(pool, self._qkv, x, norm=self._attention_norm, eps=self._eps)
        x = self._add_back(x, self._output, self._attend(qkv, rotation, step), after_attention)
        gated = multiply(pool, self._gate_up, x, norm=self._mlp_norm, eps=self._eps, into=self._gate)
        return self._add_back(x, self._down, gated, after_mlp)

    def _attend(self, qkv: torch.Tensor, rotation: RotationTable, step: NativeStep) -> torch.Tensor:
        layer = step.backend.describe(self._index)
        layer.query_norm, layer.key_norm = _address(self._query_norm), _address(self._key_norm)
        rotation.tell(layer)
        layer.eps = self._eps
        return step.attend_as(layer, qkv).flatten(1)

    def _add_back(
        self, x: torch.Tensor, layer: PackedLinear, own: torch.Tensor, post_norm: Part | None
    ) -> torch.Tensor:
        product = self._kernels.group.sum(multiply(self._kernels.pool, layer, own))
        return x + (product if post_norm is None else post_norm(product))


class NativeShare:
    """Implements `CausalDecoder` over a rank's share of torch parts, whose sums are not made yet; activations
    are float32. `cache_dtype`: float32 or bfloat16. Takes the layers out of `decoder` one by one, so that no
    share stands in memory twice."""

    dtype = torch.float32

    def __init__(self, decoder: Decoder, kernels: Kernels, cache_dtype: torch.dtype) -> None:
        self.config = decoder.config
        self._spec = replace(decoder.kv_spec(1), dtype=cache_dtype)
        self._embed, self._norm = decoder.embed, decoder.norm
        self._rotations = [RotationTable(rope) for rope in decoder.ropes]
        self._layer_ropes = decoder.layer_ropes
        self._pool = kernels.pool
        layers = enumerate(decoder.take_layers())
        self._layers = [NativeLayer(layer, i, self.config, kernels) for i, layer in layers]
        self._head = pack_head(kernels.pool, decoder.head.weight, kernels.form)

    @property
    def num_bytes(self) -> int:
        """Of the packed weights."""
        return sum(layer.num_bytes for layer in self._layers) + self._head.num_bytes

    def kv_spec(self, block_size: int) -> KVSpec:
        return replace(self._spec, block_size=block_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        assert isinstance(step, NativeStep)
        x = self._embed(token_ids).float()
        for table in self._rotations:
            table.reach(step.longest)
        for layer, rope in zip(self._layers, self._layer_ropes, strict=True):
            x = layer(x, self._rotations[rope], step)
        return self._norm(x).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        scores, cap = multiply(self._pool, self._head, hidden), self.config.logit_softcap
        return scores if cap is None else torch.tanh(scores / cap) * cap


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
