"""`headrace watch`: the answer of a request, as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer

from headrace.broker.lines.embeddings import vector_json
from headrace.broker.message import DEFAULT_TENANT, RequestRef
from headrace.cli import options
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment
from headrace.cli.unserved import noticing_silence, unserved_like
from headrace.producer.client import Client
from headrace.producer.gateway.status import unknown
from headrace.producer.gateway.stream import StreamView, stream_events
from headrace.v1 import inference_pb2 as pb


def watch(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="As printed by `headrace publish`.")],
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    grpc: options.Grpc = None,
    prefix: options.Prefix = None,
    tenant: options.Tenant = DEFAULT_TENANT,
) -> None:
    """Print an answer as it comes, from its beginning to its end.

    Where nothing comes and no consumer is up for it, says so on stderr, and waits on.
    """
    environment = read_environment()
    target = options.gateway_target(grpc, broker, environment)
    if target is not None:
        options.refuse_tenant(tenant)
        events = events_from_gateway(target, request_id)
    else:
        url = options.broker_url(broker, broker_option, environment)
        ref = RequestRef(request_id, tenant)
        events = events_from_broker(url, options.prefix(prefix, environment), ref)
    run_async(_print(events))


async def events_from_gateway(target: str, request_id: str) -> AsyncGenerator[pb.StreamEvent]:
    async with (
        Client(target, policy=options.IMPATIENT) as client,
        aclosing(noticing_silence(client.watch(request_id), _ask_the_broker, _hint)) as events,
    ):
        async for event in events:
            yield event


async def events_from_broker(url: str, prefix: str, ref: RequestRef) -> AsyncGenerator[pb.StreamEvent]:
    async with connected(url, prefix) as broker:
        if not await broker.known(ref):
            raise Mistake(unknown(ref.request_id).message)
        shown = stream_events(broker.watch(ref), StreamView(ref.request_id))
        hints = noticing_silence(shown, lambda: unserved_like(broker, ref.request_id), _hint)
        async with aclosing(hints) as events:
            async for event in events:
                yield event


async def _ask_the_broker() -> str:
    """A gateway does not say who serves what."""
    return (
        "nothing comes; `headrace queue --broker URL` shows what waits, and whether a consumer is up for it"
    )


def _hint(sentence: str) -> None:
    print(f"headrace: {sentence}", file=sys.stderr)


async def _print(events: AsyncGenerator[pb.StreamEvent]) -> ExitCode:
    """Text to stdout; what happens to it to stderr. Of several answers the first one is shown as it comes,
    and the others at the end."""
    code = ExitCode.SOME_FAILED
    others: dict[int, list[str]] = {}
    async with aclosing(events):
        async for event in events:
            match event.WhichOneof("kind"):
                case "delta" if event.delta.choice:
                    others.setdefault(event.delta.choice, []).append(event.delta.text)
                case "delta":
                    sys.stdout.write(event.delta.text)
                    sys.stdout.flush()
                case "restarted":
                    others.clear()
                    _note(event.restarted.reason)
                case "finished":
                    texts = ["".join(pieces) for _, pieces in sorted(others.items())]
                    sys.stdout.write("\n".join(["", *texts, *_vectors(event.finished), ""]))
                    code = ExitCode.OK
                case "failed":
                    _note(f"{event.failed.message} ({event.failed.code})")
    return code


def _vectors(finished: pb.StreamFinished) -> list[str]:
    """Of texts that were embedded, as JSON."""
    return [json.dumps(vector_json(vector, is_base64=False)) for vector in finished.embeddings]


def _note(sentence: str) -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()
    print(f"headrace: {sentence}", file=sys.stderr)
