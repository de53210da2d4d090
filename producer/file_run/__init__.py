"""`run_file`: the logic of `headrace run IN.jsonl -o OUT.jsonl`, over any broker."""

from headrace.producer.file_run.options import FileRunError, FileRunOptions, Progress, Summary
from headrace.producer.file_run.run import run_file

__all__ = ["FileRunError", "FileRunOptions", "Progress", "Summary", "run_file"]
