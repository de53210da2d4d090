"""`headrace run`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.broker.message import Lane
from headrace.cli import options, service_options
from headrace.cli.engine_options import takes_engine
from headrace.cli.errors import ExitCode
from headrace.cli.file_job import FileJob, answer_file
from headrace.cli.progress import RunDisplay, summary_line
from headrace.cli.running import run_async
from headrace.cli.settings import read_environment
from headrace.cli.up import require_model
from headrace.gpu_engine.config import EngineConfig
from headrace.producer.file_run.run import FileRun


@takes_engine
def run(
    engine: EngineConfig,
    input_file: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="OpenAI batch lines.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Where the answers go.")
    ],
    broker: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use this queue and its consumers; else we start our own."),
    ] = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    lane: Annotated[Lane, typer.Option(help="Service class of the requests.")] = Lane.BATCH,
    served_model_name: options.ServedModelNames = None,
    blobs: service_options.Blobs = None,
    blob_threshold: service_options.BlobThreshold = service_options.BLOB_THRESHOLD,
) -> None:
    """Answer every line of a file. Stopped or killed, the same command goes on where it was.

    Exit status: 0 all lines answered, 1 some lines failed (their errors are in OUT), 2 could not run,
    130 interrupted.
    """
    environment = read_environment()
    if broker is None:
        require_model(engine)
    else:
        broker = options.broker_url(broker, broker_option, environment)
    job = FileJob(
        input=input_file,
        output=output,
        engine=engine,
        broker=broker,
        prefix=options.prefix(prefix, environment),
        lane=lane,
        served_model_names=options.served_names(served_model_name),
        blobs=service_options.blob_store(blobs, environment),
        blob_threshold=blob_threshold,
    )
    with FileRun.open(job.run_options) as files:
        run_async(_run(job, files))


async def _run(job: FileJob, files: FileRun) -> ExitCode:
    with RunDisplay() as display:
        summary = await answer_file(job, files, display)
        if summary is None:
            display.note("interrupted; the same command goes on from here")
            return ExitCode.INTERRUPTED
        display.note(f"{summary_line(summary)} → {job.output}")
    return ExitCode.SOME_FAILED if summary.failed else ExitCode.OK
