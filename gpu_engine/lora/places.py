"""Where in our decoders the projections of a checkpoint lie, for what an adapter adds to them.

self_attn.q_proj ─┐                 mlp.gate_proj ─┐
self_attn.k_proj ─┼► qkv            mlp.up_proj   ─┴► gate_up        self_attn.o_proj ──► output
self_attn.v_proj ─┘                 (Phi-3 has them fused itself)    mlp.down_proj    ──► down
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.shapes import has_experts

Matrix = Literal["qkv", "output", "gate_up", "down"]


@dataclass(frozen=True, slots=True)
class Place:
    """A projection of `inputs` to `outputs` numbers: rows `start` … `start + outputs - 1` of `matrix`."""

    matrix: Matrix
    start: int
    outputs: int
    inputs: int


def places(config: ModelConfig, layer: int) -> dict[str, Place]:
    """The projections of `layer` that an adapter may add to, by their names in a checkpoint. A mixture of
    experts is none of them."""
    hidden, attended = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    attention = {"qkv_proj": attended + 2 * keys}
    if not config.fused_projections:
        attention = {"q_proj": attended, "k_proj": keys, "v_proj": keys}
    found = _side_by_side("self_attn", "qkv", attention, hidden)
    found["self_attn.o_proj"] = Place("output", 0, hidden, attended)
    return found if has_experts(config, layer) else found | _feed_forward(config)


def _feed_forward(config: ModelConfig) -> dict[str, Place]:
    hidden, inner = config.hidden_size, config.intermediate_size
    parts = (
        {"gate_up_proj": 2 * inner} if config.fused_projections else {"gate_proj": inner, "up_proj": inner}
    )
    down = Place("down", 0, hidden, inner)
    return _side_by_side("mlp", "gate_up", parts, hidden) | {"mlp.down_proj": down}


def _side_by_side(prefix: str, matrix: Matrix, parts: dict[str, int], inputs: int) -> dict[str, Place]:
    found, start = {}, 0
    for name, outputs in parts.items():
        found[f"{prefix}.{name}"] = Place(matrix, start, outputs, inputs)
        start += outputs
    return found
