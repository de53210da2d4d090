"""From the rotary parameters of a transformers config to ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.gpu_engine.models.config import RopeConfig
from headrace.gpu_engine.models.errors import ModelError, wrong_config

KINDS: Final = ("default", "linear", "llama3", "yarn", "longrope")

NUMBERS: Final = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_max_position_embeddings": "original_context",
}
"""Positive numbers, by their names there and here."""


def read_rope(parameters: Mapping[str, Any], *, max_context: int, head_dim: int, share: float) -> RopeConfig:
    """`parameters`: `rope_parameters` of a config, or what it holds for one type of layer. `max_context`:
    the longest sequence by the config, from which YaRN and LongRoPE take their factor where none is given.
    `share`: the part of each head that is rotated."""
    kind = parameters.get("rope_type", "default")
    if kind not in KINDS:
        raise ModelError(
            f"The model scales its rotary embeddings by '{kind}', which is not supported; "
            f"supported are {', '.join(KINDS)}."
        )
    given = {
        ours: parameters[theirs] for theirs, ours in NUMBERS.items() if parameters.get(theirs) is not None
    }
    theta = parameters["rope_theta"]
    if not _are_positive((theta, *given.values())):
        raise wrong_config(f"its rotary parameters are {dict(parameters)}")
    if kind in ("yarn", "longrope"):
        given.setdefault("factor", max_context / given["original_context"])
        given |= _read_scaled(kind, parameters, given["factor"], given["original_context"])
    rope = RopeConfig(theta=theta, kind=kind, share=share, **given)
    _refuse_senseless(rope, head_dim)
    return rope


def _read_scaled(kind: str, parameters: Mapping[str, Any], factor: float, context: int) -> dict[str, Any]:
    """What YaRN and LongRoPE have besides; both make attention sharper by a factor of their own."""
    scale = parameters.get("attention_factor")
    if kind == "yarn":
        scale = _yarn_factor(parameters, factor) if scale is None else scale
        return {"attention_factor": scale, "truncate": bool(parameters.get("truncate", True))}
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
    return {
        "attention_factor": scale,
        "divisors": tuple(parameters["short_factor"]),
        "long_divisors": tuple(parameters["long_factor"]),
    }


def _yarn_factor(parameters: Mapping[str, Any], factor: float) -> float:
    def by(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    one, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return by(one) / by(all_dims) if one and all_dims else by(1.0)


def _refuse_senseless(rope: RopeConfig, head_dim: int) -> None:
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise wrong_config("its low_freq_factor is not below its high_freq_factor")
    if rope.kind == "yarn" and rope.theta <= 1:
        raise wrong_config(f"its rope_theta is {rope.theta}")
    if not 0 < rope.share <= 1 or int(head_dim * rope.share) < 2 or int(head_dim * rope.share) % 2:
        raise wrong_config(f"it rotates {rope.share} of heads of {head_dim}")
    if not _are_positive((rope.attention_factor, *rope.divisors, *rope.long_divisors)):
        raise wrong_config("its rotary factors are not all positive numbers")
    pairs = int(head_dim * rope.share) // 2
    if rope.kind == "longrope" and not len(rope.divisors) == len(rope.long_divisors) == pairs:
        raise wrong_config(f"its short_factor and long_factor are not {pairs} numbers each")


def _are_positive(numbers: Iterable[Any]) -> bool:
    return all(math.isfinite(x) and x > 0 for x in numbers)
