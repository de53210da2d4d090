"""The requests that everybody answers: drawn from a seed, the same token ids and lengths for all."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

LOWEST_ID: Final = 10
HIGHEST_ID: Final = 30_000  # below every model's vocabulary, so that all get the same
SINGLE_PROMPT: Final = 64
SINGLE_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Row:
    """One request: token ids, and how many tokens the answer has, whatever they are."""

    prompt: list[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` are answered together; `single`, a prompt of 64 tokens, alone, with `single_tokens`."""

    rows: list[Row]
    single: list[int]
    single_tokens: int

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    def write(self, file: Path) -> Path:
        file.write_text(json.dumps(asdict(self)))
        return file


def draw_workload(
    seed: int = 1, *, count: int = 64, bos: int | None = None, shared_prefix: int = 0, shorter: int = 1
) -> Workload:
    """Prompts of 16 to 256 tokens; two thirds of the answers short (8 to 64), the others long (128 to 256).
    `bos` begins each prompt; `shared_prefix` tokens at the beginning of all are the same. `shorter` divides
    the answers' lengths, for a smoke run."""
    rng = random.Random(seed)
    prefix = _draw_ids(random.Random(f"prefix {seed}"), shared_prefix)  # leaves the rest as it is
    rows = [_draw_row(rng, bos, prefix, shorter) for _ in range(count)]
    single = _begin(_draw_ids(random.Random(f"single {seed}"), SINGLE_PROMPT), bos)
    return Workload(rows, single, max(2, SINGLE_TOKENS // shorter))


def _draw_row(rng: random.Random, bos: int | None, prefix: list[int], shorter: int) -> Row:
    length = rng.randint(16, 256)
    tokens = rng.randint(8, 64) if rng.random() < 2 / 3 else rng.randint(128, 256)
    return Row(_begin([*prefix, *_draw_ids(rng, length)], bos), max(2, tokens // shorter))


def _draw_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(count)]


def _begin(prompt: list[int], bos: int | None) -> list[int]:
    return prompt if bos is None else [bos, *prompt[1:]]
