"""What one engine can serve at all: checked once, when a request comes in."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.gpu_engine.api import EngineError, EngineRequest, SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.sampling.check import check_params


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
            or check_params(request.params, self.vocab_size)
            or _check_single(request.params)
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


def _check_single(params: SamplingParams) -> EngineError | None:
    """Several answers are the business of `FanOut`, around the engine."""
    if params.n == 1 and params.best_of in (None, 1):
        return None
    return _invalid("n", "This engine makes one answer to a request; n and best_of must be 1.")


def _invalid(param: str, message: str) -> EngineError:
    return EngineError(code="invalid_request", message=message, param=param)


def _too_long(message: str) -> EngineError:
    return EngineError(code="context_length_exceeded", message=message, param="prompt_ids")
