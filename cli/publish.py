"""`headrace publish`: puts the lines of a file on the queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from headrace.broker.contract import Broker
from headrace.broker.ids import new_request_id
from headrace.broker.lines.reader import LineReader
from headrace.broker.lines.request import LineError
from headrace.broker.message import Lane, Message
from headrace.cli import options
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment

AT_ONCE = 256


def publish(
    input_file: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="OpenAI batch lines.")],
    lane: Annotated[Lane, typer.Option(help="Service class of the requests.")] = Lane.BATCH,
    stream: Annotated[bool, typer.Option(help="Write tokens as they come, for `headrace watch`.")] = False,
    broker: options.Broker = None,
    prefix: options.Prefix = None,
) -> None:
    """Publish every good line of a file and print its request id; bad lines are named and left out."""
    environment = read_environment()
    url = options.broker_url(broker, environment)
    run_async(_publish_file(input_file, lane, stream, url, options.prefix(prefix, environment)))


async def _publish_file(path: Path, lane: Lane, stream: bool, url: str, prefix: str) -> ExitCode:
    with open_input(path) as file:
        async with connected(url, prefix) as broker:
            return await _publish_lines(broker, file, lane, stream)


def open_input(path: Path) -> BinaryIO:
    """The file; raises Mistake where it cannot be read."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise Mistake(f"there is no file {path}") from error
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error


async def _publish_lines(broker: Broker, file: BinaryIO, lane: Lane, stream: bool) -> ExitCode:
    refused: list[LineError] = []
    messages = _messages(file, lane, stream, refused)
    while chunk := list(islice(messages, AT_ONCE)):
        for result in await broker.publish(chunk):
            print(result.ref.request_id, flush=False)
        sys.stdout.flush()
    for error in refused:
        print(f"line {error.line}: {error.message} ({error.code})", file=sys.stderr)
    return ExitCode.SOME_FAILED if refused else ExitCode.OK


def _messages(file: BinaryIO, lane: Lane, stream: bool, refused: list[LineError]) -> Iterator[Message]:
    """The good lines as messages; the errors of the bad ones are added to `refused`."""
    for line in LineReader(file):
        if isinstance(line.request, LineError):
            refused.append(line.request)
        else:
            yield Message(body=line.raw, request_id=new_request_id(lane), lane=lane, stream=stream)
