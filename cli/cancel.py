"""`headrace cancel`: stops a request, wherever it is."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.broker.contract import CancelResult
from headrace.broker.message import DEFAULT_TENANT, RequestRef
from headrace.cli import options
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment
from headrace.producer.client import Client
from headrace.producer.gateway.status import unknown


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="As printed by `headrace publish`.")],
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    grpc: options.Grpc = None,
    prefix: options.Prefix = None,
    tenant: options.Tenant = DEFAULT_TENANT,
) -> None:
    """Cancel a request; its partial answer is kept."""
    environment = read_environment()
    target = options.gateway_target(grpc, broker, environment)
    if target is not None:
        options.refuse_tenant(tenant)
        run_async(_cancel_by_gateway(target, request_id))
    else:
        url = options.broker_url(broker, broker_option, environment)
        ref = RequestRef(request_id, tenant)
        run_async(_cancel_by_broker(url, options.prefix(prefix, environment), ref))


async def _cancel_by_gateway(target: str, request_id: str) -> ExitCode:
    async with Client(target, policy=options.IMPATIENT) as client:
        return _tell(await client.cancel(request_id))


async def _cancel_by_broker(url: str, prefix: str, ref: RequestRef) -> ExitCode:
    async with connected(url, prefix) as broker:
        result = await broker.cancel(ref)
    if result is CancelResult.UNKNOWN:
        raise Mistake(unknown(ref.request_id).message)
    return _tell(result is CancelResult.MARKED)


def _tell(cancelled: bool) -> ExitCode:
    print("cancelled" if cancelled else "it had ended before")
    return ExitCode.OK if cancelled else ExitCode.SOME_FAILED
