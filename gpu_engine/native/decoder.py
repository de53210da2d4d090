"""A decoder whose whole step is one call of the kernels, made from a decoder of torch parts.

Activations are float32 between the layers whatever the weights are kept in, so that only products and the KV
cache round. A row's result depends on that row and its own context alone, bit for bit: the same alone, in any
batch, in any chunk.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.lora.adapters import Adapters
from headrace.gpu_engine.models.blocks import Layer, PreNormLayer, SandwichLayer
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.experts import MixtureOfExperts
from headrace.gpu_engine.models.layers import GatedMLP, Linear, Part
from headrace.gpu_engine.native.attention import NativeAttention, NativeStep
from headrace.gpu_engine.native.declarations import (
    DecoderStruct,
    ExpertsStruct,
    Format,
    LayerStruct,
    LinearStruct,
)
from headrace.gpu_engine.native.linear import PackedLinear, PackedStack, pack_stack
from headrace.gpu_engine.native.lora import NativeLoras
from headrace.gpu_engine.native.parts import GATES, halved, norm_weight, pack_head, pack_part
from headrace.gpu_engine.native.pool import Pool
from headrace.gpu_engine.native.rotation import RotationTable


def can_run(config: ModelConfig) -> bool:
    """Whether all parts of such a model are ones that the kernels know."""
    return config.activation in GATES and not (config.experts is not None and config.post_norms)


class NativeDecoder:
    """Implements what the runner asks of a decoder. `form`: how weights are kept; `cache_dtype`: float32 or
    bfloat16. Takes the layers out of `decoder` one by one, so that no model stands in memory twice."""

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        form: Format,
        cache_dtype: torch.dtype,
        adapters: Adapters | None = None,
    ) -> None:
        self.config = decoder.config
        self._spec_of = decoder.kv_spec
        self._pool, self._form, self.cache_dtype = pool, form, cache_dtype
        self.embeddings, self._embed = decoder.embeddings, decoder.embed
        self._rotations = [RotationTable(rope) for rope in decoder.ropes]
        self._layer_ropes = decoder.layer_ropes
        self._kept: list[torch.Tensor | PackedLinear | PackedStack] = []
        self._layers = (LayerStruct * self.config.num_layers)()
        for i, layer in enumerate(decoder.take_layers()):
            self._layers[i] = self._describe(layer)
        self._struct = DecoderStruct(
            layers=ctypes.addressof(self._layers),
            norm=self._weight_of(decoder.norm),
            head=self._keep(pack_head(pool, decoder.head.weight, form)),
            num_layers=self.config.num_layers,
            hidden=self.config.hidden_size,
            eps=self.config.norm_eps,
        )
        self._bound: NativeAttention | None = None
        self._reach = 0  # positions whose rotations the layers know
        self._loras = None if adapters is None else NativeLoras(adapters, pool, self.config)

    @property
    def num_bytes(self) -> int:
        """Of the packed weights, and of the adapters."""
        packed = sum(kept.num_bytes for kept in self._kept if not isinstance(kept, torch.Tensor))
        return packed + (0 if self._loras is None else self._loras.num_bytes)

    def kv_spec(self, block_size: int) -> KVSpec:
        return replace(self._spec_of(block_size), dtype=self.cache_dtype)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """As `Decoder.forward`, in float32."""
        assert isinstance(step, NativeStep)
        if self._bound is not step.backend:
            self._bind(step.backend)
        if step.longest > self._reach:
            self._rotate_up_to(step.longest)
        x = self._embed(token_ids).float().contiguous()
        self._pool.kernels.headrace_forward(
            self._pool.handle,
            ctypes.byref(self._struct),
            ctypes.byref(step.struct),
            None if self._loras is None else self._loras.rows(),
            x.data_ptr(),
        )
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, float32 [rows, vocabulary], for rows of `forward`'s result."""
        rows = hidden.contiguous()
        out = torch.empty(len(rows), self.config.vocab_size)
        self._pool.kernels.headrace_logits(
            self._pool.handle, ctypes.byref(self._struct), rows.data_ptr(), len(rows), out.data_ptr()
        )
        cap = self.config.logit_softcap
        return out if cap is None else torch.tanh(out / cap) * cap

    def _rotate_up_to(self, length: int) -> None:
        """Tells the layers where the rotations of so many positions are."""
        for table in self._rotations:
            table.reach(length)
        for layer, place in zip(self._layers, self._layer_ropes, strict=True):
            self._rotations[place].tell(layer.attention)
        self._reach = min(map(len, self._rotations))

    def _bind(self, backend: NativeAttention) -> None:
        """Tells the layers where their cache lies."""
        for i, layer in enumerate(self._layers):
            described = backend.describe(i)
            described.query_norm, described.key_norm = layer.attention.query_norm, layer.attention.key_norm
            described.eps = self.config.norm_eps
            layer.attention = described
        self._bound, self._reach = backend, 0

    # --------------------------------------------------------------------------------- from torch's parts

    def _describe(self, layer: Layer) -> LayerStruct:
        attention = layer.attention
        struct = LayerStruct(
            qkv=self._pack(attention.qkv, self._form),
            output=self._pack(attention.output, self._form),
            attention_norm=self._weight_of(layer.attention_norm),
            mlp_norm=self._weight_of(layer.mlp_norm),
            gate=GATES[self.config.activation].value,
        )
        self._describe_feed_forward(layer.mlp, struct)
        struct.attention.query_norm = self._weight_of(attention.q_norm)
        struct.attention.key_norm = self._weight_of(attention.k_norm)
        if isinstance(layer, SandwichLayer):
            struct.post_attention_norm = self._weight_of(layer.attention_post_norm)
            struct.post_mlp_norm = self._weight_of(layer.mlp_post_norm)
        else:
            assert isinstance(layer, PreNormLayer)
        return struct

    def _describe_feed_forward(self, part: Part, struct: LayerStruct) -> None:
        if isinstance(part, MixtureOfExperts):
            struct.experts = ExpertsStruct(
                # Which experts a token takes is no matter of rounding.
                router=self._pack(part.router, Format.FLOAT32),
                gate_up=self._pack_stack(part.gate_up, gated=True),
                down=self._pack_stack(part.down),
                count=len(part.down),
                per_token=part.per_token,
                normalised=part.normalised,
            )
        else:
            assert isinstance(part, GatedMLP), "ask can_run first"
            struct.gate_up = self._pack(part.gate_up, self._form, gated=True)
            struct.down = self._pack(part.down, self._form)

    def _pack(self, part: Linear, form: Format, *, gated: bool = False) -> LinearStruct:
        return self._keep(pack_part(self._pool, part, form, gated=gated))

    def _keep(self, packed: PackedLinear) -> LinearStruct:
        self._kept.append(packed)
        return packed.struct

    def _pack_stack(self, weights: torch.Tensor, *, gated: bool = False) -> int:
        """The address of the structs of `weights` [count, outputs, inputs]."""
        packed = pack_stack(self._pool, weights, halved(self._form, weights), gated=gated)
        self._kept.append(packed)
        return ctypes.addressof(packed.structs)

    def _weight_of(self, norm: Part | None) -> int | None:
        weight = norm_weight(norm)
        if weight is None:
            return None
        self._kept.append(weight)
        return weight.data_ptr()
