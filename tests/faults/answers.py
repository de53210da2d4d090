"""What the simulated engine answers, whoever runs which part of it."""

from __future__ import annotations

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sim import expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer


def expected_tokens(prompt: str, tokens: int, seed: int) -> list[int]:
    """The one answer to this prompt."""
    prompt_ids = SimTokenizer().encode(prompt)
    return expected_answer(prompt_ids, SamplingParams(max_tokens=tokens, seed=seed), tokens)


def expected_text(prompt: str, tokens: int, seed: int) -> str:
    return SimTokenizer().decode(expected_tokens(prompt, tokens, seed))
