"""From a request's parameters to its controls."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.embedding.pooling import Pooler, PoolerMaker
from headrace.gpu_engine.sampling.bans import BadWords, MinTokens
from headrace.gpu_engine.sampling.controls import Controls, Stage
from headrace.gpu_engine.sampling.guide import GrammarError, Guide, GuideMaker
from headrace.gpu_engine.sampling.known import KnownTokens
from headrace.gpu_engine.sampling.penalties import LogitBias, OccurrencePenalties, RepetitionPenalty
from headrace.gpu_engine.sampling.prompt_scores import PromptScores
from headrace.gpu_engine.text.contract import Tokenizer


class ControlsMaker:
    """`vocab_size`: logits that a row has. `poolers`: how vectors are made; None: none are."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, poolers: PoolerMaker | None = None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._poolers = poolers
        self.guides = _guide_maker(tokenizer, vocab_size)

    def make(self, request: EngineRequest, token_ids: list[int]) -> Controls | None:
        """None where plain sampling will do. `token_ids`: the list in which the engine keeps the known tokens
        of this request. Raises GrammarError, and TextError for bad words that are no text."""
        params = request.params
        known = KnownTokens(token_ids, len(request.prompt_ids))
        scores = params.prompt_logprobs
        controls = Controls(
            stages=tuple(self._stages(params, known)),
            guide=self._guide(params, known),
            num_logprobs=params.logprobs,
            prompt_scores=None if scores is None else PromptScores(request.prompt_ids, scores),
            pooler=self._pooler(request),
        )
        return None if controls == Controls() else controls

    def _pooler(self, request: EngineRequest) -> Pooler | None:
        if request.embed is None or self._poolers is None:
            return None
        return self._poolers.make(len(request.prompt_ids), request.embed.dimensions)

    def _stages(self, params: SamplingParams, known: KnownTokens) -> Iterator[Stage]:
        if params.logit_bias:
            yield LogitBias(params.logit_bias)
        if params.repetition_penalty != 1:
            yield RepetitionPenalty(params.repetition_penalty, known)
        if params.frequency_penalty or params.presence_penalty:
            yield OccurrencePenalties(params.frequency_penalty, params.presence_penalty, known)
        if params.bad_words:
            yield BadWords(self._spellings(params.bad_words), known)
        if params.min_tokens:
            ends = {token for token in self._tokenizer.eos_ids if token < self._vocab_size}
            yield MinTokens(params.min_tokens, ends | {*params.stop_token_ids}, known)

    def _spellings(self, words: tuple[str, ...]) -> Iterator[list[int]]:
        """A word at the beginning of a text and one within it are different tokens. One with a token that no
        row has a logit for cannot appear. Raises TextError."""
        for word in words:
            for text in (word, " " + word.lstrip()):
                tokens = self._tokenizer.encode_piece(text)
                if tokens and max(tokens) < self._vocab_size:
                    yield tokens

    def _guide(self, params: SamplingParams, known: KnownTokens) -> Guide | None:
        if params.grammar is None:
            return None
        if self.guides is None:
            raise GrammarError("this model's tokenizer has no end token, or no form that grammars can use")
        return self.guides.make(params.grammar, known)


def _guide_maker(tokenizer: Tokenizer, vocab_size: int) -> GuideMaker | None:
    eos_ids = [token for token in tokenizer.eos_ids if token < vocab_size]
    source = tokenizer.to_json()
    if source is None or not eos_ids:
        return None
    return GuideMaker(source, max(vocab_size, tokenizer.vocab_size), eos_ids)
