"""`headrace demo`: answers the example prompts with a small real model, on this machine alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.engine_options import takes_engine
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.file_job import FileJob, answer_file
from headrace.cli.models import DEMO, resolve_model
from headrace.cli.progress import RunDisplay, summary_line
from headrace.cli.running import run_async
from headrace.cli.settings import read_environment
from headrace.gpu_engine.config import EngineConfig
from headrace.producer.file_run.run import FileRun

PROMPTS = "prompts.jsonl"
SHOWN = 5
SHOWN_CHARACTERS = 300


@takes_engine
def demo(
    engine: EngineConfig,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="IN.jsonl", help="Other prompts than the examples.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Where the answers go.")
    ] = Path(".demo/answers.jsonl"),
) -> None:
    """Answer 50 example prompts with a small model; show some."""
    if engine.engine == "torch" and not engine.model:
        engine = engine.model_copy(update={"model": resolve_model(DEMO)})
    prompts = input_file or example_prompts()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)  # each demo answers all of them
    job = FileJob(prompts, output, engine, None, read_environment().prefix)
    with FileRun.open(job.run_options) as files:
        run_async(_demo(job, files))


def example_prompts() -> Path:
    """The example file: in the repository, or beside this module where the package is installed."""
    here = Path(__file__).resolve().parent
    for path in (here.parent / "examples" / PROMPTS, here / PROMPTS):
        if path.is_file():
            return path
    raise Mistake(f"the example prompts ({PROMPTS}) are not here; name a file with --input")


async def _demo(job: FileJob, files: FileRun) -> ExitCode:
    with RunDisplay() as display:
        summary = await answer_file(job, files, display)
        if summary is None:
            return ExitCode.INTERRUPTED
    told = _questions_and_answers(job)
    for question, answer in told[:: max(1, len(told) // SHOWN)][:SHOWN]:
        print(f"» {_shorten(question)}\n  {_shorten(answer)}\n")
    speed = summary.completion_tokens / max(summary.elapsed_s, 1e-3)
    print(f"{summary_line(summary)}, {speed:,.0f} tokens/s")
    print(f"all answers: {job.output}")
    return ExitCode.SOME_FAILED if summary.failed else ExitCode.OK


def _questions_and_answers(job: FileJob) -> list[tuple[str, str]]:
    """In the order of the input."""
    answers = {line["custom_id"]: line for line in _lines(job.output)}
    return [
        (line["body"]["messages"][-1]["content"], _text(answers[line["custom_id"]]))
        for line in _lines(job.input)
        if line["custom_id"] in answers
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [json.loads(line) for line in file if line.strip()]


def _text(result: dict[str, Any]) -> str:
    if not result["response"] or result["response"]["status_code"] != 200:
        return f"(failed: {json.dumps(result['error'] or result['response']['body'])})"
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"
