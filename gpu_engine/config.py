"""Settings of an engine, validated once and frozen. Names follow vLLM, TGI and TensorRT-LLM."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SimConfig(BaseModel):
    """The simulated engine: times in milliseconds, failures on purpose (0: never).

    Answers are made from the prompt by hashing, so that they are the same on every run and any loss or
    doubling shows. `tokens`: length of an answer when the request sets no limit. `fail_every`: each n-th
    request fails; `crash_after_steps`: the process dies in that step; `hang_after_steps`: it stops there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_token_ms: float = Field(default=20.0, ge=0)
    step_ms: float = Field(default=5.0, ge=0)
    tokens: int = Field(default=32, ge=1)
    fail_every: int = Field(default=0, ge=0)
    crash_after_steps: int = Field(default=0, ge=0)
    hang_after_steps: int = Field(default=0, ge=0)


class EngineConfig(BaseModel):
    """One engine.

    `model`: a folder in Hugging Face layout, a GGUF file, or a hub id. `load_format` `dummy` draws random
    weights from the folder's config.json. `block_size`: tokens per KV block. `num_kv_blocks` None: as many
    as fit `kv_cache_bytes`. `max_batch_size`: running requests; `max_batch_tokens`: the step budget;
    `max_input_length`, `max_total_tokens`: per request (None: the model's context). `watermark`: share of
    blocks that admission leaves free. `priority_ageing_ms`: how long later requests of higher lanes may go
    before the oldest one of a lane that waits, until it has the first claim on what becomes free.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    engine: Literal["torch", "sim"] = "torch"
    model: str = ""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["cpu"] = "cpu"
    attention: Literal["auto", "cpu", "reference"] = "auto"
    block_size: int = Field(default=16, ge=1, le=256)
    num_kv_blocks: int | None = Field(default=None, ge=2)
    kv_cache_bytes: int = Field(default=1 << 30, ge=1 << 20)
    max_batch_size: int = Field(default=16, ge=1)
    max_batch_tokens: int = Field(default=512, ge=1)
    max_input_length: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=2)
    enable_prefix_caching: bool = True
    watermark: float = Field(default=0.01, ge=0, lt=1)
    priority_ageing_ms: float = Field(default=5000.0, ge=0)
    threads: int | None = Field(default=None, ge=1, le=1024)
    sim: SimConfig = SimConfig()
