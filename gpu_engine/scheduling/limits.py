"""What one engine can serve at all: checked once, when a request comes in."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from headrace.gpu_engine.api import EngineError, EngineRequest, SamplingParams
from headrace.gpu_engine.config import EngineConfig

MAX_STOP_STRINGS = 16
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that hold for each request. `kv_tokens`: slots of KV memory, in blocks of `block_size`.

    `max_total_tokens` (prompt and output) is never above `kv_tokens`, so a request that is accepted fits
    by itself to its last token.
    """

    max_input_length: int
    max_total_tokens: int
    kv_tokens: int
    block_size: int
    vocab_size: int

    @classmethod
    def of(
        cls, config: EngineConfig, *, num_blocks: int, block_size: int, max_context: int, vocab_size: int
    ) -> Limits:
        """Limits under `config`, for a model with `max_context` positions and KV memory of `num_blocks`
        blocks, the null block among them."""
        kv_tokens = (num_blocks - 1) * block_size
        total = min(config.max_total_tokens or max_context, max_context, kv_tokens)
        return cls(
            max_input_length=min(config.max_input_length or total - 1, total - 1),
            max_total_tokens=total,
            kv_tokens=kv_tokens,
            block_size=block_size,
            vocab_size=vocab_size,
        )

    def max_output_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """The user's limit, capped by what fits after the prompt."""
        room = self.max_total_tokens - num_prompt_tokens
        return room if max_tokens is None else min(max_tokens, room)

    def check(self, request: EngineRequest) -> EngineError | None:
        """Why `request` can never be served, with the numbers; None if it can."""
        return (
            self._check_length(len(request.prompt_ids))
            or self._check_vocabulary(request.prompt_ids, "prompt_ids")
            or self._check_vocabulary(request.output_ids, "output_ids")
            or check_params(request.params)
        )

    def _check_length(self, prompt: int) -> EngineError | None:
        if prompt == 0:
            return _invalid("prompt_ids", "The prompt is empty; it needs at least one token.")
        if prompt + 1 > self.kv_tokens:
            needed, there = -(-(prompt + 1) // self.block_size), self.kv_tokens // self.block_size
            return _too_long(
                f"The prompt has {prompt} tokens; with one token of output it needs {needed} KV blocks of "
                f"{self.block_size} tokens, and the engine has {there}. Shorten the prompt or give the "
                "engine more KV memory."
            )
        if prompt + 1 > self.max_total_tokens:
            return _too_long(
                f"The prompt has {prompt} tokens; with at least one token of output that is more than "
                f"max_total_tokens, {self.max_total_tokens}. Shorten the prompt."
            )
        if prompt > self.max_input_length:
            return _too_long(
                f"The prompt has {prompt} tokens, more than max_input_length, {self.max_input_length}. "
                "Shorten the prompt."
            )
        return None

    def _check_vocabulary(self, token_ids: list[int], name: str) -> EngineError | None:
        for place, token in enumerate(token_ids):
            if not 0 <= token < self.vocab_size:
                return _invalid(
                    name,
                    f"Token id {token} at place {place} of {name} is not in the vocabulary, "
                    f"whose ids are 0 to {self.vocab_size - 1}.",
                )
        return None


def check_params(params: SamplingParams) -> EngineError | None:
    """Why `params` make no sense, if so. NaN is outside every range."""
    rules = (
        (
            params.max_tokens is None or params.max_tokens >= 1,
            "max_tokens",
            f"max_tokens must be at least 1, not {params.max_tokens}.",
        ),
        (
            isfinite(params.temperature) and params.temperature >= 0,
            "temperature",
            f"temperature must be a finite number of at least 0, not {params.temperature}.",
        ),
        (0 < params.top_p <= 1, "top_p", f"top_p must be above 0 and at most 1, not {params.top_p}."),
        (params.top_k >= 0, "top_k", f"top_k must be at least 0 (0: no limit), not {params.top_k}."),
        (0 <= params.min_p <= 1, "min_p", f"min_p must be between 0 and 1, not {params.min_p}."),
        (
            params.seed is None or SEED_RANGE[0] <= params.seed <= SEED_RANGE[1],
            "seed",
            f"seed must fit in 64 bits, {params.seed} does not.",
        ),
        (
            len(params.stop) <= MAX_STOP_STRINGS,
            "stop",
            f"stop may have at most {MAX_STOP_STRINGS} strings, not {len(params.stop)}.",
        ),
        (all(params.stop), "stop", "A stop string must not be empty."),
    )
    return next((_invalid(name, message) for holds, name, message in rules if not holds), None)


def _invalid(param: str, message: str) -> EngineError:
    return EngineError(code="invalid_request", message=message, param=param)


def _too_long(message: str) -> EngineError:
    return EngineError(code="context_length_exceeded", message=message, param="prompt_ids")
