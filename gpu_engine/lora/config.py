"""The adapter_config.json of a folder in PEFT's layout, and what in it cannot be served."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headrace.gpu_engine.models.errors import ModelError

CONFIG: Final = "adapter_config.json"

UNSUPPORTED: Final = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "megatron_config",
)
"""Fields that change what is computed, and that must be unset. (Tensors are checked besides, one by one.)"""

CHANGES_THE_MODEL: Final = ("pissa", "olora", "corda", "loftq")
"""Beginnings of `init_lora_weights` under which the model's own weights were changed, too."""


Rank = Annotated[int, Field(ge=1)]
Alpha = Annotated[float, Field(allow_inf_nan=False)]


class AdapterConfig(BaseModel):
    """What of a PEFT LoraConfig counts here. A product is scaled by `lora_alpha / r`, with `use_rslora` by
    `lora_alpha / sqrt(r)` (Kalajdzievski 2023); the patterns name modules with values of their own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    peft_type: str
    r: Rank = 8
    lora_alpha: Alpha = 8
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] = {}
    alpha_pattern: dict[str, Alpha] = {}
    bias: str = "none"
    init_lora_weights: Any = True

    @field_validator("rank_pattern", "alpha_pattern")
    @classmethod
    def _check_patterns(cls, patterns: dict[str, Any]) -> dict[str, Any]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no pattern, {error}") from error
        return patterns

    def rank_of(self, module: str) -> int:
        """Rank in `module`, a full name such as model.layers.0.self_attn.q_proj."""
        return self.rank_pattern.get(_matching(self.rank_pattern, module), self.r)

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter_config(name: str, folder: Path) -> AdapterConfig:
    """The config of the adapter `name`. Raises ModelError, and names what cannot be served."""
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(
            f"LoRA adapter {name}: {folder} has no {CONFIG}; give a folder as save_pretrained of PEFT "
            "writes it."
        )
    try:
        config = AdapterConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ModelError(f"LoRA adapter {name}: {path} is wrong ({_reason(error)}).") from error
    _refuse_unsupported(name, config)
    return config


def _refuse_unsupported(name: str, config: AdapterConfig) -> None:
    if config.peft_type.upper() != "LORA":
        raise ModelError(f"Adapter {name} is of type {config.peft_type}; only LORA is supported.")
    extra = config.model_extra or {}
    named = [field for field in UNSUPPORTED if extra.get(field)]
    if config.bias != "none":
        named.append(f"bias={config.bias}")
    start = config.init_lora_weights
    if isinstance(start, str) and start.lower().startswith(CHANGES_THE_MODEL):
        named.append(f"init_lora_weights={start}")
    if named:
        raise ModelError(
            f"LoRA adapter {name} uses {', '.join(named)}, which is not supported; merge it into the model's "
            "weights, or train it without."
        )


def _matching(patterns: Iterable[str], module: str) -> str:
    """The first pattern that ends `module` at a dot, as PEFT matches them; empty: none does."""
    return next((one for one in patterns if re.match(rf"(.*\.)?({one})$", module)), "")


def _reason(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return error.strerror or repr(error)
    [first, *_] = error.errors()
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
