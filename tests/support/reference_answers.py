"""What transformers answers, and how our answers are held to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

TIE = 1e-4
"""Two best logits nearer than this may swap: rounding differs between any two orders of summation."""

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """Greedy tokens of the reference; at each, its second best token and how far its logit is behind."""

    token_ids: list[int]
    seconds: list[int]
    gaps: list[float]


@dataclass
class Comparison:
    """Counts tokens that were compared, and places where a tie was decided the other way."""

    tokens: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)

    def compare(self, name: str, ours: Sequence[int], reference: Answer) -> None:
        """Up to the first difference: what follows a tie that fell the other way is another answer. It must
        have fallen to the reference's second best token, no other."""
        if len(ours) != len(reference.token_ids):
            self.wrong.append(f"{name}: {len(ours)} tokens, not {len(reference.token_ids)}")
        rows = zip(ours, reference.token_ids, reference.seconds, reference.gaps, strict=False)
        for i, (token, best, second, gap) in enumerate(rows):
            self.tokens += 1
            if token == best:
                continue
            if token == second and gap < TIE:
                self.ties += 1
            else:
                self.wrong.append(f"{name}: token {i} is {token}, not {best}")
            return

    def check(self) -> None:
        assert not self.wrong, self.wrong[:5]
        assert self.tokens > 0
        assert self.ties < max(1, self.tokens / 1000), f"{self.ties} ties in {self.tokens} tokens"


def answer_greedily(reference: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Mapping[Prompt, Answer]:
    """`generate` of transformers for each prompt, end tokens ignored. Prompts of equal length go in one
    call, so that none is ever padded."""
    by_length: defaultdict[int, list[Prompt]] = defaultdict(list)
    for prompt in dict.fromkeys(map(tuple, prompts)):
        by_length[len(prompt)].append(prompt)
    answers: dict[Prompt, Answer] = {}
    for same in by_length.values():
        answers |= zip(same, _generate(reference, same, tokens), strict=True)
    return answers


def _generate(reference: Any, prompts: list[Prompt], tokens: int) -> list[Answer]:
    ids = torch.tensor(prompts)
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits, dim=1).topk(2, dim=-1)
    gaps = best.values[..., 0] - best.values[..., 1]
    new = out.sequences[:, ids.shape[1] :]
    seconds = best.indices.sum(dim=-1) - new  # the other of the two, in whichever order equals come
    rows = zip(new.tolist(), seconds.tolist(), gaps.tolist(), strict=True)
    return [Answer(*row) for row in rows]
