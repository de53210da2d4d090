"""The order of stages as the documentation tells it, token by token, in plain Python."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.sampling.sampler import choose
from tests.unit.engine.fakes import EOS
from tests.unit.sampling.logit_runner import logits_after


def naive_answer(request: EngineRequest) -> list[int]:
    """All output of `request`, alone, by a loop that keeps nothing from one token to the next."""
    params = request.params
    output = list(request.output_ids)
    assert params.max_tokens is not None
    while len(output) < params.max_tokens and not _has_ended(output, params):
        output.append(_next(request.prompt_ids, output, params))
    return output


def _has_ended(output: Sequence[int], params: SamplingParams) -> bool:
    last = output[-1:]
    return (last == [EOS] and not params.ignore_eos) or bool({*last} & {*params.stop_token_ids})


def _next(prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> int:
    logits = shaped_logits(logits_after([*prompt, *output]), prompt, output, params)
    return sample_one(logits, params, len(prompt) + len(output))


def sample_one(logits: Sequence[float], params: SamplingParams, position: int) -> int:
    """Through the plain sampler, with minus infinity as far down as it takes finite numbers."""
    lowest = min(value for value in logits if value > -math.inf) - 1e6
    row = np.array([value if value > -math.inf else lowest for value in logits], np.float32)
    token = choose(row, np.arange(len(row)), params, position)
    assert token is not None
    return token


def shaped_logits(
    raw: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    logits = torch.tensor(raw)
    counts = Counter(output)
    for token in range(len(logits)):
        logits[token] += params.logit_bias.get(token, 0)
        if token in prompt or token in output:
            penalty = params.repetition_penalty
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        logits[token] -= params.frequency_penalty * counts[token] + params.presence_penalty * (
            token in output
        )
        if _is_forbidden(token, output, params):
            logits[token] = -math.inf
    return [float(value) for value in logits]


def _is_forbidden(token: int, output: Sequence[int], params: SamplingParams) -> bool:
    text = _letters([*output, token])
    if any(text.endswith(word) for word in params.bad_words):
        return True
    if len(output) < params.min_tokens and (token == EOS or token in params.stop_token_ids):
        return True
    if params.grammar is None:
        return False
    if token == EOS:
        return re.fullmatch(params.grammar.source, _letters(output)) is None
    return not _may_begin(text, params.grammar.source)


def _may_begin(text: str, pattern: str) -> bool:
    """For patterns of the form `[set]{low,high}` joined together: whether some match begins with `text`."""
    parts = re.findall(r"(\[[^]]*\])\{(\d+),(\d+)\}", pattern)
    states = {(0, 0)}  # (part, letters taken of it)
    for letter in text:
        states = {after for state in states for after in _after(state, letter, parts)}
    return bool(states)


def _after(
    state: tuple[int, int], letter: str, parts: Sequence[tuple[str, str, str]]
) -> set[tuple[int, int]]:
    part, taken = state
    found: set[tuple[int, int]] = set()
    while part < len(parts):
        letters, low, high = parts[part]
        if taken < int(high) and re.fullmatch(letters, letter):
            found.add((part, taken + 1))
        if taken < int(low):
            break
        part, taken = part + 1, 0
    return found


def _letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)
