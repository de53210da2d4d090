"""`headrace gateway`: one gRPC gateway."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import SecretStr

from headrace.cli import options, service_options
from headrace.cli.event_loop import TURN_S, run_service
from headrace.cli.ready_file import check_place
from headrace.cli.settings import read_environment
from headrace.producer.gateway.limits import GatewayLimits
from headrace.producer.gateway.service import run_gateway
from headrace.producer.gateway.settings import GatewaySettings


def gateway(
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    pool: options.Pool = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    grpc_port: options.Port = 50051,
    grace: options.Grace = 20.0,
    reflection: Annotated[bool, typer.Option(help="Let clients ask for the service's description.")] = True,
    lane_policy: service_options.LanePolicies = None,
    max_queued_requests: service_options.MaxQueuedRequests = service_options.LIMITS.max_requests,
    max_queued_tokens: service_options.MaxQueuedTokens = service_options.LIMITS.max_tokens,
    blobs: service_options.Blobs = None,
    blob_threshold: service_options.BlobThreshold = service_options.BLOB_THRESHOLD,
    ready_file: options.ReadyFile = None,
) -> None:
    """Serve gRPC: take requests in and stream their answers."""
    environment = read_environment()
    check_place(ready_file)
    store = service_options.blob_store(blobs, environment, writes=True)
    settings = GatewaySettings(
        broker=SecretStr(options.broker_url(broker, broker_option, environment)),
        prefix=options.prefix(prefix, environment),
        pool=options.pool(pool, environment),
        limits=GatewayLimits(max_requests=max_queued_requests, max_tokens=max_queued_tokens),
        queue=service_options.lane_policies(lane_policy),
        blobs=SecretStr(store) if store is not None else None,
        blob_threshold=blob_threshold,
        host=host,
        port=grpc_port,
        drain_grace_s=grace,
        reflection=reflection,
        ready_file=ready_file,
    )
    raise typer.Exit(run_service(run_gateway(settings), turn_s=TURN_S))
