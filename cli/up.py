"""`headrace up`: the whole service on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import options, service_options
from headrace.cli.broker_options import parse_options
from headrace.cli.engine_options import takes_engine
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.numbers import MOST_PROCESSES, number
from headrace.cli.ready_file import check_place, remove_ready, write_ready
from headrace.cli.running import run_async, stop_signals
from headrace.cli.settings import Environment, read_environment
from headrace.cli.stack import EMBEDDED, Stack, StackOptions, check_embedded
from headrace.gpu_engine.config import EngineConfig


@takes_engine
def up(
    engine: EngineConfig,
    consumers: Annotated[
        int, number(low=1, high=MOST_PROCESSES, metavar="N", text="Consumers, each with an engine.")
    ] = 1,
    lease: options.Lease = 30.0,
    grpc_port: options.Port = 50051,
    broker: Annotated[
        str,
        typer.Option(metavar="redis|kafka|URL", help="Start a queue of this kind, or use the one at URL."),
    ] = "redis",
    broker_option: options.BrokerOptions = None,
    broker_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of our own queue; 0: any free one.")
    ] = 0,
    prefix: options.Prefix = None,
    data_dir: Annotated[Path, typer.Option(metavar="FOLDER", help="Where our own queue is kept.")] = Path(
        ".headrace"
    ),
    grace: options.Grace = 20.0,
    served_model_name: options.ServedModelNames = None,
    log_retention: options.LogRetention = 24 * 60 * 60,
    pool: options.Pool = None,
    lane_policy: service_options.LanePolicies = None,
    tenant_weight: service_options.TenantWeights = None,
    max_queued_requests: service_options.MaxQueuedRequests = service_options.LIMITS.max_requests,
    max_queued_tokens: service_options.MaxQueuedTokens = service_options.LIMITS.max_tokens,
    blobs: service_options.Blobs = None,
    blob_threshold: service_options.BlobThreshold = service_options.BLOB_THRESHOLD,
    quarantine_after: service_options.QuarantineAfter = service_options.QUARANTINE_AFTER,
    poison_deaths: service_options.PoisonDeaths = service_options.POISON_DEATHS,
    ready_file: options.ReadyFile = None,
) -> None:
    """Run broker, consumers and gateway on this machine until Ctrl-C."""
    environment = read_environment()
    require_model(engine)
    check_place(ready_file)
    service_options.lane_policies(lane_policy)  # what is wrong with them is said before anything starts
    service_options.tenant_weights(tenant_weight)
    common = (
        *("--pool", options.pool(pool, environment)),
        *service_options.repeated("--lane-policy", lane_policy),
    )
    limits = (
        "--max-queued-requests",
        str(max_queued_requests),
        "--max-queued-tokens",
        str(max_queued_tokens),
    )
    deaths = ("--quarantine-after", str(quarantine_after), "--poison-deaths", str(poison_deaths))
    stack = StackOptions(
        data_dir=data_dir,
        engine=engine,
        broker=broker,
        broker_options=_broker_options(broker, broker_option, environment),
        broker_port=broker_port,
        prefix=options.prefix(prefix, environment),
        consumers=consumers,
        lease_s=lease,
        log_retention_s=log_retention,
        served_model_names=options.served_names(served_model_name),
        grpc_port=grpc_port,
        grace_s=grace,
        blobs=service_options.blob_store(blobs, environment, writes=True),
        consumer_arguments=(
            *common,
            *deaths,
            *service_options.repeated("--tenant-weight", tenant_weight),
        ),
        gateway_arguments=(*common, *limits, "--blob-threshold", str(blob_threshold)),
    )
    run_async(_up(Stack(stack, _say), ready_file))


def _broker_options(broker: str, given: Sequence[str] | None, environment: Environment) -> Mapping[str, str]:
    """Those of the environment are meant for a broker that runs somewhere, not for one of our own."""
    if broker in EMBEDDED:
        chosen = parse_options(given or ())
        check_embedded(broker, chosen)
        return chosen
    return options.broker_options(given, environment)


def require_model(engine: EngineConfig) -> None:
    """Raises Mistake where a model is needed and none is named."""
    if engine.engine == "torch" and not engine.model:
        raise Mistake(
            "which model? Pass --model FOLDER, FILE.gguf, a hub id or smollm2-demo; or try --engine sim"
        )


async def _up(stack: Stack, ready_file: Path | None) -> ExitCode:
    stops = stop_signals()
    remove_ready(ready_file)
    try:
        await stack.start()
        running = asyncio.ensure_future(stack.run())
        announcing = asyncio.ensure_future(_announce(stack, ready_file))
        stopping = asyncio.ensure_future(stops.get())
        await asyncio.wait({running, announcing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, announcing):
            if task.done():
                await task
        announcing.cancel()
        return await _drain(stack, stops)
    finally:
        await stack.kill()
        remove_ready(ready_file)


async def _drain(stack: Stack, stops: asyncio.Queue[Any]) -> ExitCode:
    _say("up", "stopping: running requests may finish; Ctrl-C again stops at once")
    draining = asyncio.ensure_future(stack.drain())
    again = asyncio.ensure_future(stops.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    return ExitCode.OK if draining.done() else ExitCode.INTERRUPTED


async def _announce(stack: Stack, ready_file: Path | None) -> None:
    """Prints the endpoints once all is healthy, and keeps the ready file true from then on."""
    printed = False
    async for endpoints in stack.changes():
        if ready_file is not None:
            write_ready(ready_file, endpoints)
        if not printed:
            _print_endpoints(endpoints)
            printed = True


def _print_endpoints(endpoints: dict[str, Any]) -> None:
    print(f"gRPC    {endpoints['grpc']}")
    print(f"broker  {endpoints['broker']}")
    print(f"\nexport HEADRACE_BROKER={endpoints['broker']}", flush=True)


def _say(name: str, line: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that has gone, or a full disk, must not end the service
        print(f"{name}: {line}", file=sys.stderr, flush=True)
