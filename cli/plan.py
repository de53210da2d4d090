"""`headrace plan`: what fits into some GPUs, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from headrace.cli.errors import Mistake
from headrace.cli.models import resolve_model
from headrace.cli.numbers import MOST_PROCESSES, MOST_TOKENS, number
from headrace.gpu_engine.models.errors import ModelError

if TYPE_CHECKING:
    from headrace.gpu_engine.plan import Capacity

Number: TypeAlias = Literal["float32", "bfloat16", "float16"]

BYTES: Final[dict[Number, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
UNITS: Final = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
MEMORY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?i?B?)")
MOST_BLOCK: Final = 256  # as an engine takes it


def plan(
    model: Annotated[str, typer.Option(metavar="MODEL", help="A folder, a .gguf file or a hub id.")],
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of one GPU, such as 80GiB.")],
    tokens: Annotated[
        int, number(low=1, high=MOST_TOKENS, metavar="N", text="Tokens of a request, prompt and answer.")
    ],
    gpus: Annotated[
        int, number(low=1, high=MOST_PROCESSES, metavar="N", text="GPUs that share the model.")
    ] = 1,
    dtype: Annotated[Number, typer.Option(help="Number format of weights and KV cache.")] = "bfloat16",
    block_size: Annotated[
        int, number(low=1, high=MOST_BLOCK, metavar="N", text="Tokens per block of KV memory.")
    ] = 16,
    gpu_memory_utilization: Annotated[
        float, number(low=0.01, high=1.0, metavar="SHARE", text="Share for weights and KV cache.")
    ] = 0.92,
) -> None:
    """Show weights, KV memory and the batch that fits."""
    memory = parse_size(gpu_memory)
    from headrace.gpu_engine.plan import measure_model, plan_capacity  # here, since torch takes a second

    try:
        capacity = plan_capacity(
            measure_model(resolve_model(model)),
            gpu_bytes=memory,
            gpus=gpus,
            num_tokens=tokens,
            dtype_bytes=BYTES[dtype],
            block_size=block_size,
            utilization=gpu_memory_utilization,
        )
    except ModelError as error:
        raise Mistake(str(error)) from error
    for name, value in _rows(capacity, f"{dtype}, {gpus} x {gpu_memory} x {gpu_memory_utilization:g}"):
        print(f"{name:<16} {value}")


def _rows(capacity: Capacity, settings: str) -> Iterator[tuple[str, str]]:
    size, gpus = capacity.size, capacity.gpus
    share = f", {size_of(capacity.weight_bytes / gpus)} on each GPU" if gpus > 1 else ""
    request = f"of {capacity.num_tokens:,} tokens"
    yield "model", f"{size.name}: {size.num_layers} layers, {size.num_kv_heads} KV heads of {size.head_dim}"
    yield "settings", settings
    yield "weights", f"{size_of(capacity.weight_bytes)} ({size.num_weights / 1e6:,.0f} million){share}"
    yield "left for KV", size_of(capacity.kv_bytes)
    yield "KV per token", f"{capacity.kv_bytes_per_token:,} bytes"
    yield "KV per request", f"{size_of(capacity.kv_bytes_per_request)} {request}"
    yield "blocks", f"{capacity.num_blocks:,} of {capacity.block_size} tokens"
    yield "batch that fits", f"{capacity.num_requests:,} requests {request}"


def parse_size(text: str) -> int:
    """Bytes of a size such as 80GiB, 80GB or 1.5 TB. Raises Mistake."""
    match = MEMORY.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        raise Mistake(f"--gpu-memory takes a number and a unit, such as 80GiB; {text[:40]!r} is none")
    return int(float(match[1]) * UNITS[match[2]])


def size_of(num_bytes: float) -> str:
    """In decimal units, with three digits or so."""
    if num_bytes < 1e9:
        return f"{num_bytes / 1e6:.3g} MB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes < 1e10 else f"{num_bytes / 1e9:.1f} GB"
