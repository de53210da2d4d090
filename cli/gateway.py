"""`headrace gateway`: one gRPC gateway."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from pydantic import SecretStr

from headrace.cli import options
from headrace.cli.ready_file import check_place
from headrace.cli.settings import read_environment
from headrace.producer.gateway.service import run_gateway
from headrace.producer.gateway.settings import GatewaySettings


def gateway(
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    grpc_port: options.Port = 50051,
    grace: options.Grace = 20.0,
    reflection: Annotated[bool, typer.Option(help="Let clients ask for the service's description.")] = True,
    ready_file: options.ReadyFile = None,
) -> None:
    """Serve gRPC: take requests in and stream their answers."""
    environment = read_environment()
    check_place(ready_file)
    settings = GatewaySettings(
        broker=SecretStr(options.broker_url(broker, broker_option, environment)),
        prefix=options.prefix(prefix, environment),
        host=host,
        port=grpc_port,
        drain_grace_s=grace,
        reflection=reflection,
        ready_file=ready_file,
    )
    raise typer.Exit(asyncio.run(run_gateway(settings)))
