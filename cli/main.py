"""The command `headrace`. A user's mistake is one sentence and status 2; traces only with `--debug`."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.broker.errors import BrokerError
from headrace.cli.cancel import cancel
from headrace.cli.consumer import consumer
from headrace.cli.demo import demo
from headrace.cli.errors import SENTENCE, ExitCode, Mistake
from headrace.cli.gateway import gateway
from headrace.cli.parent import die_with_parent
from headrace.cli.processes import ChildFailed
from headrace.cli.publish import publish
from headrace.cli.queue import queue
from headrace.cli.run import run
from headrace.cli.settings import read_environment
from headrace.cli.up import up
from headrace.cli.watch import watch
from headrace.consumer.errors import ConsumerError
from headrace.producer.client_errors import ClientError
from headrace.producer.file_run.options import FileRunError
from headrace.producer.gateway.server import GatewayError

DEBUG = "--debug"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Errors whose text is a sentence for the user.
TOLD = (Mistake, BrokerError, ChildFailed, ClientError, ConsumerError, FileRunError, GatewayError)


def build_app() -> typer.Typer:
    """All commands, in the order of the help."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, callback=_common
    )
    for command in (run, up, demo, publish, watch, cancel, queue, gateway, consumer):
        app.command()(command)
    return app


def main() -> None:
    """The entry point."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit status."""
    words = [word for word in arguments if word != DEBUG]  # it may stand anywhere
    debug = len(words) < len(arguments)
    try:
        environment = read_environment()
        debug = debug or environment.debug
        if environment.parent is not None:
            die_with_parent(environment.parent)
        logging.basicConfig(level=environment.log_level, format=LOG_FORMAT)
        return int(build_app()(words, prog_name="headrace", standalone_mode=False) or ExitCode.OK)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        sentence, code = explain(error)
        print(SENTENCE + " ".join(sentence.split()), file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[str, ExitCode]:
    """One sentence for the user, and the exit status."""
    if isinstance(error, TOLD):
        return str(error), ExitCode.COULD_NOT_RUN
    if isinstance(error, typer.Abort):
        return "interrupted", ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", ExitCode.COULD_NOT_RUN
    usage = getattr(error, "format_message", None)  # of typer's, or of the click that it stands on
    if usage is not None:
        return f"{usage().rstrip('.')}; see `headrace --help`", ExitCode.COULD_NOT_RUN
    return f"unexpected error: {error!r}; run it again with {DEBUG} to see where", ExitCode.OUR_BUG


def _show_version(asked: bool) -> None:
    if asked:
        print(importlib.metadata.version("headrace"))
        raise typer.Exit


def _common(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show traces of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Queue-driven LLM inference: prompts in, answers out, nothing lost and nothing twice."""


if __name__ == "__main__":
    main()
