"""From the metadata of a GGUF file to the fields of a transformers config."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.gpu_engine.models.hf_config import FULL, SLIDING

REQUIRED: Final = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
)

OPTIONAL: Final = MappingProxyType(
    {
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "final_logit_softcapping": "final_logit_softcapping",
    }
)

SCALING: Final = MappingProxyType(
    {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
)

GEMMA3_LOCAL_THETA: Final = 10_000.0
GEMMA3_LAYERS_OF_27B: Final = 62

Fields = dict[str, Any]


class Metadata:
    """The entries of one architecture, without its prefix."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        prefix = f"{architecture}."
        self.architecture = architecture
        self._values = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def missing(self) -> str | None:
        """The full name of an entry that must be there and is not."""
        return next((f"{self.architecture}.{name}" for name in REQUIRED if name not in self._values), None)

    def fields(self, factors: Mapping[str, list[float]]) -> Fields:
        """Fields of a transformers config; `factors` of LongRoPE by `short_factor` and `long_factor`."""
        names = REQUIRED | OPTIONAL
        common = {names[name]: value for name, value in self._values.items() if name in names}
        common["rope_parameters"] = self._rope()
        match self.architecture:
            case "gemma3":
                return common | self._gemma3(common)
            case "phi3":
                return common | self._phi3(common, factors)
            case "qwen3moe":
                # llama.cpp always makes the weights of the chosen experts sum to one.
                return common | {"norm_topk_prob": True}
            case _:
                # Llama's files may name a window, which neither llama.cpp nor Llama itself has.
                return common | {"sliding_window": None}

    def _rope(self) -> Fields:
        rope: Fields = {"rope_theta": self.get("rope.freq_base", 10000.0)}
        kind = self.get("rope.scaling.type", "none")
        if kind != "none" and self.get("rope.scaling.factor", 1.0) not in (0.0, 1.0):
            given = {hf: self.get(f"rope.scaling.{name}") for name, hf in SCALING.items()}
            rope |= {"rope_type": kind} | {name: value for name, value in given.items() if value is not None}
        return rope

    def _gemma3(self, common: Fields) -> Fields:
        """Every sixth layer sees all, unless the file says which."""
        layers, heads = common["num_hidden_layers"], common["num_attention_heads"]
        pattern = self.get("attention.sliding_window_pattern", 6)
        local = pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(layers)]
        scalar = common["hidden_size"] // heads if layers == GEMMA3_LAYERS_OF_27B else common.get("head_dim")
        theta = self.get("rope.freq_base_swa", GEMMA3_LOCAL_THETA)
        return {
            "layer_types": [SLIDING if is_local else FULL for is_local in local],
            "query_pre_attn_scalar": scalar,
            "rope_parameters": {FULL: common["rope_parameters"], SLIDING: {"rope_theta": theta}},
        }

    def _phi3(self, common: Fields, factors: Mapping[str, list[float]]) -> Fields:
        """A window of 0 is none. Factors mean LongRoPE, whatever the scaling is called."""
        head_dim = common["hidden_size"] // common["num_attention_heads"]
        rope = {"rope_theta": common["rope_parameters"]["rope_theta"]}
        rope["partial_rotary_factor"] = self.get("rope.dimension_count", head_dim) / head_dim
        original = self.get("rope.scaling.original_context_length", common["max_position_embeddings"])
        scaled = {"rope_type": "longrope", **factors} if factors else {}
        return {
            "sliding_window": self.get("attention.sliding_window") or None,
            "original_max_position_embeddings": original,
            "rope_parameters": rope | scaled,
        }
