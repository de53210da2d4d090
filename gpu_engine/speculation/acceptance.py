"""The verification of a draft (after Leviathan et al. 2023).

    known      … a b            computed:  b   c   d   e      one forward, a row for each
    draft            c d e                 │   │   │   │
    sampled          c d x  y              c   d   x   y      each row under its own position's noise
    run              c d x                 ✓   ✓   ✗          y comes after an e that is not there

The noise of a position depends on the seed and the position alone, so what is sampled in a row is the very
token that would be sampled there without a draft, if all before it are right. That makes the check a plain
comparison, for greedy and for random sampling alike, and the output the same token for token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def accept(draft: Sequence[int], sampled: Iterable[int | None]) -> list[int]:
    """The tokens that a step brings: those of `draft` that were sampled too, and the first that was not in
    it. `sampled`: for the row before the draft and each of its own; not read further than needed. None stands
    for a row that has no token: the run ends before it, and is empty if that is the first."""
    run: list[int] = []
    for place, token in enumerate(sampled):
        if token is None:
            break
        run.append(token)
        if place == len(draft) or token != draft[place]:
            break
    return run
