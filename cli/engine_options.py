"""The engine's settings as options of a command, and back again as the arguments of a child process.

The options are made from `EngineConfig`, so there is one list of names, types and defaults: the field
`max_batch_size` is `--max-batch-size`, the field `step_ms` of the simulated engine `--sim-step-ms`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headrace.cli.errors import Mistake
from headrace.cli.models import resolve_model
from headrace.cli.numbers import MOST_BYTES, MOST_TOKENS
from headrace.gpu_engine.config import EngineConfig, SimConfig

HELP = {
    "engine": "torch runs a model; sim simulates one, to try a pipeline without.",
    "model": "A folder in Hugging Face layout, a .gguf file, a hub id, or smollm2-demo.",
    "load_format": "dummy draws random weights from the folder's config.json.",
    "dtype": "Number format of weights and KV cache.",
    "device": "Where the model runs.",
    "tensor_parallel_size": "Processes that share each layer of the model.",
    "backend": "Arithmetic: our own kernels (native), torch's operators, or the faster of those that serve.",
    "weight_format": "How the native kernels keep weights; auto follows --dtype.",
    "kv_cache_dtype": "Number format of the native KV cache; auto follows the weights.",
    "attention": "Attention kernels; reference is slow and exact.",
    "block_size": "Tokens per block of KV memory.",
    "num_kv_blocks": "Blocks of KV memory, in place of --kv-cache-bytes.",
    "kv_cache_bytes": "Memory for the KV cache.",
    "max_batch_size": "Requests that run at the same time.",
    "max_batch_tokens": "Tokens computed in one step.",
    "max_input_length": "Longest prompt, in tokens.",
    "max_total_tokens": "Most tokens of a request, prompt and answer together.",
    "batching_policy": "continuous, dynamic, static, or one of your own.",
    "max_waiting_tokens": "Waiting tokens at which a dynamic batch starts.",
    "max_wait_ms": "Time after which a dynamic batch starts.",
    "max_queue_size": "Requests that may wait for a place; more are refused.",
    "max_queue_tokens": "The same in tokens.",
    "enable_chunked_prefill": "Spread a long prompt over several steps.",
    "enable_prefix_caching": "Reuse the KV memory of equal beginnings.",
    "swap_space_bytes": "Host memory for KV blocks of preempted requests; 0: none.",
    "watermark": "Share of KV blocks that stays free when requests are admitted.",
    "enable_peak_admission": "Admit a request only if all that run are expected to fit to their ends.",
    "priority_ageing_ms": "How long higher lanes may go before a waiting request of a lower one.",
    "speculative_method": "ngram: guess the next tokens from what followed the last ones before.",
    "num_speculative_tokens": "Tokens that are guessed at most, and verified in one step.",
    "prompt_lookup_max": "Longest run of tokens that is looked for earlier in the text.",
    "prompt_lookup_min": "Shortest run of tokens that is looked for earlier in the text.",
    "adaptive_speculation": "Guess only as much as pays.",
    "pooling": "How embeddings are made; auto: as the model's folder says, else of the last token.",
    "normalize": "Embeddings have unit length.",
    "lora_modules": "A LoRA adapter: the name that requests use and its folder; may be repeated.",
    "max_lora_rank": "Highest rank of a LoRA adapter.",
    "tool_call_format": "How the model calls tools; auto: as its chat template shows.",
    "trace_path": "Record each step in this file ({pid}: the engine's process); `headrace trace` draws it.",
    "threads": "CPU threads of the engine.",
    "pin_threads": "Bind each thread of the native kernels to one CPU.",
    "sim_first_token_ms": "Time to the first token.",
    "sim_step_ms": "Time per step.",
    "sim_tokens": "Length of an answer when the request sets no limit.",
    "sim_fail_every": "Each n-th request fails; 0: none.",
    "sim_crash_after_steps": "The engine dies in that step; 0: never.",
    "sim_hang_after_steps": "The engine hangs in that step; 0: never.",
}
SIM = "sim"
REPEATED = {"lora_modules": "NAME=PATH"}
"""Fields that an option fills pair by pair."""
# The highest values that make sense, by the unit in the name; what has none counts tokens, requests or steps.
MOST = {"ms": 7 * 24 * 60 * 60 * 1000, "bytes": MOST_BYTES}
MOST_BATCH_SIZE, MOST_BATCH_TOKENS = 1 << 16, 1 << 24
MOST_OF = {"max_batch_size": MOST_BATCH_SIZE, "max_batch_tokens": MOST_BATCH_TOKENS}


def takes_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the parameter `engine: EngineConfig` of a command by one option for each of its fields."""
    own = inspect.signature(command, eval_str=True).parameters
    options = {parameter.name: parameter for parameter in _parameters()}

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in options}
        command(**values, engine=engine_config(chosen))

    merged = [parameter for name, parameter in own.items() if name != "engine"]
    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in merged]
    signature = inspect.Signature([*by_name, *options.values()])
    with_options.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
    with_options.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return with_options


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """The config that the options describe; raises Mistake for values it refuses."""
    fields = {name: value for name, value in options.items() if not _is_sim(name)}
    sim = {name.removeprefix("sim_"): value for name, value in options.items() if _is_sim(name)}
    for name, value in options.items():
        _check_most(name, value)
    fields["model"] = resolve_model(fields.get("model", ""))
    try:
        return EngineConfig.model_validate({**fields, SIM: sim})
    except ValidationError as error:
        [first, *_] = error.errors()
        name = "_".join(str(part) for part in first["loc"])
        words = first["msg"].removeprefix("Value error, ")  # how pydantic begins the words of others
        raise Mistake(f"{_flag(name)}: {words}, not {first['input']!r}") from error


def engine_arguments(config: EngineConfig) -> list[str]:
    """The options that make this config; defaults are left out."""
    arguments: list[str] = []
    for prefix, part in (("", config), ("sim_", config.sim)):
        for name, field in type(part).model_fields.items():
            value = getattr(part, name)
            if name == SIM or value == field.default:
                continue
            arguments += _argument(f"{prefix}{name}", value)
    return arguments


def _check_most(name: str, value: Any) -> None:
    """Lowest values are the config's own; raises Mistake for one that is too high."""
    if not isinstance(value, int | float):
        return
    most = MOST_OF.get(name) or MOST.get(name.rpartition("_")[2], MOST_TOKENS)
    if value > most:
        raise Mistake(f"{_flag(name)}: Input should be less than or equal to {most}, not {value!r}")


def _argument(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [_flag(name) if value else _flag(f"no_{name}")]
    if isinstance(value, Mapping):
        return [part for each, what in value.items() for part in (_flag(name), f"{each}={what}")]
    return [_flag(name), str(value)]


def _flag(name: str) -> str:
    """An option that may be repeated, for a field with several values, names one of them."""
    return "--" + (name.removesuffix("s") if name in REPEATED else name).replace("_", "-")


def _parameters() -> list[inspect.Parameter]:
    return [*_options(EngineConfig, ""), *_options(SimConfig, "sim_")]


def _options(model: type[BaseModel], prefix: str) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            f"{prefix}{name}",
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if name in REPEATED else field.default,
            annotation=_annotation(f"{prefix}{name}", field),
        )
        for name, field in model.model_fields.items()
        if name != SIM
    ]


def _annotation(name: str, field: FieldInfo) -> Any:
    """Type and option of a field."""
    metavar = _metavar(name, field)
    if name in REPEATED:
        return Annotated[list[str], typer.Option(_flag(name), help=HELP[name], metavar=metavar)]
    return Annotated[field.annotation, typer.Option(help=HELP[name], metavar=metavar)]


def _metavar(name: str, field: FieldInfo) -> str | None:
    """What stands for the value in the help; None where that lists the choices."""
    unit = name.rpartition("_")[2]
    if name in REPEATED:
        return REPEATED[name]
    if name == "model" or unit in ("ms", "bytes", "path", "policy"):
        return unit.upper()
    return "N" if field.annotation in (int, float, int | None) else None


def _is_sim(name: str) -> bool:
    return name.startswith("sim_")
