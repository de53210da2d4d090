"""The command `headrace`. A user's mistake is one sentence and status 2; traces only with `--debug`."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.errors import SENTENCE, ExitCode
from headrace.cli.interrupts import raised_interrupts
from headrace.cli.settings import read_environment
from headrace.gpu_engine.lifeline import die_with

# In the order of the help. Each is a function of this name in the module `headrace.cli.<name>`, or a group of
# commands.
COMMANDS = (
    *("run", "up", "demo", "publish", "watch", "cancel", "queue", "consumers", "lane", "dlq", "blobs"),
    *("gateway", "consumer", "plan", "trace"),
)
SERVICES = ("run", "up", "demo", "gateway", "consumer")
SUPERVISED = ("gateway", "consumer")  # somebody starts these again: they say whether that is of any use
DEBUG = "--debug"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def build_app(asked: str | None = None) -> typer.Typer:
    """The command that is asked for, or all of them. Each brings in only what it needs itself: that halves
    the time that a command, or a child process of ours, takes to start."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut long options short
        callback=_common,
    )
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        command = getattr(importlib.import_module(f"headrace.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def execute(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit status."""
    words = [word for word in arguments if word != DEBUG] or ["--help"]
    debug = DEBUG in arguments  # it may stand anywhere
    try:
        environment = read_environment()
        debug = debug or environment.debug
        if environment.parent is not None:
            die_with(environment.parent)
        logging.basicConfig(level=environment.log_level, format=LOG_FORMAT)
        if words[0] not in SERVICES:  # what a broker promises less than it could, those say once
            logging.getLogger("headrace.broker.connect").setLevel(logging.ERROR)
        _bear_any_text()
        app = build_app(words[0])
        with raised_interrupts():
            return int(app(words, prog_name="headrace", standalone_mode=False) or ExitCode.OK)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        sentence, code = explain(error)
        if words[0] in SUPERVISED and may_pass(error):
            code = ExitCode.UNREACHABLE
        print(SENTENCE + " ".join(sentence.split()), file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[str, ExitCode]:
    """One sentence for the user, and the exit status."""
    if isinstance(error, told()):
        return str(error), ExitCode.COULD_NOT_RUN
    if isinstance(error, typer.Abort):
        return "interrupted", ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", ExitCode.COULD_NOT_RUN
    usage = getattr(error, "format_message", None)  # of typer's, or of the click that it stands on
    if usage is not None:
        words = usage().rstrip(".").replace("Value error, ", "")  # how pydantic begins the words of others
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "headrace"
        return f"{words}; see `{command} --help`", ExitCode.COULD_NOT_RUN
    return f"unexpected error: {error!r}; run it again with {DEBUG} to see where", ExitCode.OUR_BUG


def may_pass(error: Exception) -> bool:
    """Whether the same command line may work in a moment."""
    from headrace.broker.errors import BrokerUnavailable

    return isinstance(error, BrokerUnavailable)


def told() -> tuple[type[Exception], ...]:
    """The errors whose text is a sentence for the user. Imported here, since only a command that has failed
    needs to know them all."""
    from headrace.broker.errors import BrokerError
    from headrace.cli.errors import Mistake
    from headrace.cli.processes import ChildFailed
    from headrace.consumer.errors import ConsumerError
    from headrace.producer.client_errors import ClientError
    from headrace.producer.file_run.options import FileRunError
    from headrace.producer.gateway.server import GatewayError

    return (Mistake, BrokerError, ChildFailed, ClientError, ConsumerError, FileRunError, GatewayError)


def _bear_any_text() -> None:
    """An answer may hold what this terminal's encoding does not: shown as `?`, not crashed on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


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
