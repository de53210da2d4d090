"""`headrace publish`: puts the lines of a file on the queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from msgspec import structs

from headrace.broker.blobs import BlobStore, check_in
from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerError
from headrace.broker.ids import new_request_id
from headrace.broker.lines.reader import FORMAT_BYTES, Line, LineReader, foreign_format, grouped
from headrace.broker.lines.request import LineError
from headrace.broker.message import Lane, Message
from headrace.cli import options, service_options
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.numbers import number
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment


def publish(
    input_file: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="OpenAI batch lines.")],
    lane: Annotated[Lane, typer.Option(help="Service class of the requests.")] = Lane.BATCH,
    pool: options.Pool = None,
    stream: Annotated[bool, typer.Option(help="Write tokens as they come, for `headrace watch`.")] = False,
    reply_to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Result topic, PREFIX.reply.…; with --stream tokens go there too."
        ),
    ] = None,
    queue_timeout: Annotated[
        float | None,
        number(
            low=0, high=LONGEST_KEPT_S, metavar="SECONDS", text="Longest wait for the start of a request."
        ),
    ] = None,
    blobs: service_options.Blobs = None,
    blob_threshold: service_options.BlobThreshold = service_options.BLOB_THRESHOLD,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Put the good lines of a file on the queue, and print their ids.

    Bad lines are named on stderr and left out. Exit status: 0 all published, 1 some lines were bad, 2 could
    not run.
    """
    environment = read_environment()
    template = Message(
        body=b"",
        lane=lane,
        pool=options.pool(pool, environment),
        stream=stream,
        reply_to=reply_to,
        queue_timeout_ms=None if queue_timeout is None else round(queue_timeout * 1000),
    )
    url = options.broker_url(broker, broker_option, environment)
    store_url = service_options.blob_store(blobs, environment)
    store = BlobStore(store_url, threshold=blob_threshold) if store_url is not None else None
    run_async(_publish_file(input_file, template, store, url, options.prefix(prefix, environment)))


async def _publish_file(
    path: Path, template: Message, store: BlobStore | None, url: str, prefix: str
) -> ExitCode:
    with _open_input(path) as file:
        async with connected(url, prefix) as broker:
            return await _publish_lines(broker, path, file, template, store)


def _open_input(path: Path) -> BufferedReader:
    """The file, which may be a pipe; raises Mistake where it cannot be read, or holds something else."""
    try:
        file = path.open("rb")
        strange = foreign_format(file.peek(FORMAT_BYTES))
    except FileNotFoundError as error:
        raise Mistake(f"there is no file {path}") from error
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error
    if strange:
        raise Mistake(f"{path} is {strange}")
    return file


async def _publish_lines(
    broker: Broker, path: Path, file: BinaryIO, template: Message, store: BlobStore | None
) -> ExitCode:
    published = refused = 0
    try:
        for group in grouped(LineReader(file)):
            messages = [
                await check_in(_message(line, template, broker), store)
                for line in group
                if not isinstance(line.request, LineError)
            ]
            ids = [result.ref.request_id for result in await broker.publish(messages)] if messages else []
            published, refused = published + len(ids), refused + len(group) - len(ids)
            _tell(group, ids)
    except (BrokerError, OSError) as error:
        why = "nobody reads the ids any more" if isinstance(error, BrokenPipeError) else str(error)
        raise Mistake(f"{why}; of {path}, {published} requests are published and the rest is not") from error
    print(f"{published} published, {refused} refused", file=sys.stderr)
    return ExitCode.SOME_FAILED if refused else ExitCode.OK


def _message(line: Line, template: Message, broker: Broker) -> Message:
    request_id = new_request_id(template.lane, broker.place(template.lane, template.pool))
    return structs.replace(template, body=line.raw, request_id=request_id)


def _tell(group: Sequence[Line], request_ids: Sequence[str]) -> None:
    for line in group:
        if isinstance(line.request, LineError):
            error = line.request
            print(f"line {error.line}: {error.message} ({error.code})", file=sys.stderr)
    print("".join(f"{request_id}\n" for request_id in request_ids), end="", flush=True)
