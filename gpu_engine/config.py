"""Settings of an engine, validated once and frozen. Names follow vLLM, TGI and TensorRT-LLM."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from headrace.gpu_engine.lora.pairs import LoraModules


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
    `max_input_length`, `max_total_tokens`: per request (None: the model's context).

    `backend`: our own CPU kernels (`native`), or torch's operators, with the kernel that `attention` names;
    `auto`: native where it can serve the model. `weight_format`: how native keeps weights; `auto` is exact,
    but for `dtype` bfloat16 or float16, which take `int16`: half the memory, half as fast again, and several
    times closer to float32 than bfloat16 arithmetic is; `int4` suits large models, and weights that a GGUF
    file has in four bits. `kv_cache_dtype`: `auto` is float32 beside exact weights, else bfloat16.
    `pin_threads` binds each of the `threads` to a CPU of its own.

    `batching_policy`: `continuous`, `dynamic`, `static`, or one of your own (see `scheduling.policies`);
    `dynamic` starts a batch at `max_waiting_tokens` or after `max_wait_ms`. `max_queue_size` and
    `max_queue_tokens` bound what waits beyond those that can run (None: no bound); more is refused.
    `enable_chunked_prefill` off: a prompt is computed in one step, however long. `swap_space_bytes`: host
    memory for preempted requests (0: their tokens are computed anew). `watermark`: share of blocks that
    admission leaves free; `enable_peak_admission` off: it does not look ahead to what running requests will
    yet need, so that some lose their place. `priority_ageing_ms`: how long later requests of higher lanes may
    go before the oldest one of a lane that waits, until it has the first claim on what becomes free.
    `tool_call_format`: how the model writes its calls of tools (`auto`: as its chat template shows).
    `trace_path`: a file for a line about each step (None: no trace).

    `lora_modules`: folders of LoRA adapters in PEFT's layout, by the names that requests use; all are loaded
    at the start. `max_lora_rank`: one with a higher rank is refused.

    `pooling`: how a text's hidden states become its vector; `auto`: as the folder's `1_Pooling` says, else
    the last token's. `normalize`: vectors have unit length.

    `tensor_parallel_size`: processes that share each layer of the model, and divide `threads`,
    `kv_cache_bytes` and `swap_space_bytes` among them.

    `speculative_method` `ngram`: at most `num_speculative_tokens` are guessed from what followed the last
    `prompt_lookup_max` to `prompt_lookup_min` tokens earlier in the same text, and verified in one step; the
    output is the same. `adaptive_speculation`: as many as pay (off: always that many).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    engine: Literal["torch", "sim"] = "torch"
    model: str = ""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["cpu"] = "cpu"
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    backend: Literal["auto", "native", "torch"] = "auto"
    weight_format: Literal["auto", "float32", "int16", "int8", "int4"] = "auto"
    kv_cache_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Literal["auto", "cpu", "reference"] = "auto"
    block_size: int = Field(default=16, ge=1, le=256)
    num_kv_blocks: int | None = Field(default=None, ge=2)
    kv_cache_bytes: int = Field(default=1 << 30, ge=1 << 20)
    max_batch_size: int = Field(default=16, ge=1)
    max_batch_tokens: int = Field(default=512, ge=1)
    max_input_length: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=2)
    batching_policy: str = "continuous"
    max_waiting_tokens: int = Field(default=4096, ge=1)
    max_wait_ms: float = Field(default=50.0, ge=0)
    max_queue_size: int | None = Field(default=None, ge=0)
    max_queue_tokens: int | None = Field(default=None, ge=0)
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    swap_space_bytes: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.01, ge=0, lt=1)
    enable_peak_admission: bool = True
    priority_ageing_ms: float = Field(default=5000.0, ge=0)
    speculative_method: Literal["none", "ngram"] = "none"
    num_speculative_tokens: int = Field(default=8, ge=1, le=64)
    prompt_lookup_max: int = Field(default=4, ge=1, le=32)
    prompt_lookup_min: int = Field(default=2, ge=1, le=32)
    adaptive_speculation: bool = True
    pooling: Literal["auto", "mean", "last"] = "auto"
    normalize: bool = True
    tool_call_format: Literal["auto", "hermes", "llama3_json", "mistral"] = "auto"
    trace_path: str | None = None
    lora_modules: LoraModules = {}
    max_lora_rank: int = Field(default=64, ge=1)
    threads: int | None = Field(default=None, ge=1, le=1024)
    pin_threads: bool = False
    sim: SimConfig = SimConfig()

    @field_validator("prompt_lookup_min")
    @classmethod
    def _check_lookup(cls, shortest: int, info: ValidationInfo) -> int:
        longest = info.data.get("prompt_lookup_max", shortest)
        if shortest > longest:
            raise ValueError(f"must be at most prompt_lookup_max, which is {longest}")
        return shortest
