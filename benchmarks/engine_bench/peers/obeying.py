"""What every contestant's script shares: it loads once, then obeys one line at a time.

    <contestant>.py MODEL WORKLOAD [options]     obeys lines on stdin, answers each with one JSON line:

    batch        all requests of the workload, at most --slots at a time
    warm         a few of them, cut short
    single N     the single prompt, alone, with N tokens

    {"seconds": …, "tokens": …}                  the tokens that were made

The first line says `{"ready": …}`. What libraries print goes to stderr.

Standard library only: these scripts run in the peers' own environments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One request: token ids, and how many tokens the answer must have."""

    prompt: list[int]
    tokens: int


Answer = Callable[[list[Row]], int]
"""Answers all rows, greedily, whatever the tokens are; how many tokens that made."""


def parser() -> argparse.ArgumentParser:
    """With the options that all have."""
    found = argparse.ArgumentParser()
    found.add_argument("model", type=Path)
    found.add_argument("workload", type=Path)
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--slots", type=int, default=16)
    found.add_argument("--step-budget", type=int, default=512)
    return found


def obey(options: argparse.Namespace, load: Callable[[argparse.Namespace], Answer]) -> None:
    """Obeys stdin until it is closed."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    listed = json.loads(options.workload.read_text())
    rows = [Row(row["prompt"], row["tokens"]) for row in listed["rows"]]
    answer = load(options)
    print(json.dumps({"ready": True}), file=told, flush=True)
    for line in sys.stdin:
        word, _, count = line.strip().partition(" ")
        asked = _asked(word, count, rows, listed["single"])
        began = time.perf_counter()
        made = answer(asked)
        seconds = time.perf_counter() - began
        if made != sum(row.tokens for row in asked):
            raise SystemExit(f"{made} tokens instead of {sum(row.tokens for row in asked)}")
        print(json.dumps({"seconds": seconds, "tokens": made}), file=told, flush=True)


def _asked(word: str, count: str, rows: list[Row], single: list[int]) -> list[Row]:
    if word == "batch":
        return rows
    if word == "warm":
        return [Row(row.prompt, min(8, row.tokens)) for row in rows[:8]]
    if word == "single":
        return [Row(single, int(count))]
    raise SystemExit(f"unknown command {word}")
