"""Log probabilities on their way from the engine into the log."""

from __future__ import annotations

from headrace.broker import events
from headrace.gpu_engine import api


def logged(logprobs: api.TokenLogprobs) -> events.TokenLogprobs:
    """As the log holds them."""
    return events.TokenLogprobs(logprobs.token, logprobs.logprob, tuple(logprobs.top))
