"""What earlier starts have left: which run this is, and which of its lines OUT holds."""

from __future__ import annotations

from headrace.producer.file_run.identity import answers, content_key, new_run
from headrace.producer.file_run.input_file import InputFile
from headrace.producer.file_run.ledger import Ledger
from headrace.producer.file_run.mark import read_mark
from headrace.producer.file_run.options import FileRunError, FileRunOptions
from headrace.producer.file_run.output_file import OutputFile


def recover(options: FileRunOptions, source: InputFile, out: OutputFile) -> tuple[Ledger, bool]:
    """The ledger with all of OUT's lines in it, and whether the run was begun before.

    OUT itself says whose lines it holds; only where it holds none, the mark does. FileRunError where they
    are those of another input, or of the same under another model.
    """
    content = content_key(source.survey.digest, options.model)
    ledger: Ledger | None = None
    for outcome in out.recover():
        if ledger is None:
            ledger = _ledger(outcome.run, source, options)
        if not answers(outcome.run, content) or outcome.run != ledger.run:
            raise FileRunError(
                f"{options.output} holds results of another run: the input was changed since, or the model "
                "is another one; choose another output file, or delete it"
            )
        ledger.take(outcome)
    if ledger is not None:
        return ledger, True
    marked = read_mark(options.output)
    if marked is not None and answers(marked, content):
        return _ledger(marked, source, options), True
    return _ledger(new_run(content), source, options), False


def _ledger(run: str, source: InputFile, options: FileRunOptions) -> Ledger:
    return Ledger(run, source.survey.physical_lines, options.window)
