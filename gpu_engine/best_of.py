"""Of more answers than were asked for, the likeliest: they are held back until all have ended."""

from __future__ import annotations

import msgspec

from headrace.gpu_engine.api import EngineError, Output, SamplingParams


class BestOf:
    """Ranks answers by their mean log probability (OpenAI API, `best_of`); one that failed comes last."""

    def __init__(self, params: SamplingParams) -> None:
        self._n = params.n
        self._tells_logprobs = params.logprobs is not None
        self._answers: dict[int, Output] = {}

    def scored(self, params: SamplingParams) -> SamplingParams:
        """The parameters under which an answer can be ranked."""
        return params if self._tells_logprobs else msgspec.structs.replace(params, logprobs=0)

    def explain(self, error: EngineError) -> EngineError:
        """Why what is `scored` was refused, by the name of what was asked for."""
        if self._tells_logprobs or error.param != "logprobs":
            return error
        message = "best_of ranks by log probabilities, which this engine does not have; leave it out."
        return msgspec.structs.replace(error, message=message, param="best_of")

    def take(self, outputs: list[Output], *, all_ended: bool) -> list[Output]:
        """The `n` best, each whole, with the last outputs; before, nothing."""
        for output in outputs:
            so_far = self._answers.get(output.index)
            self._answers[output.index] = output if so_far is None else _join(so_far, output)
        if not all_ended:
            return []
        best = sorted(self._answers.values(), key=_rank)[: self._n]
        return [self._show(place, answer) for place, answer in enumerate(best)]

    def _show(self, place: int, answer: Output) -> Output:
        """The prompt's scores come with the first answer, whichever that is."""
        logprobs = answer.logprobs if self._tells_logprobs else []
        scores = [] if place else next((a.prompt_logprobs for a in self._answers.values()), [])
        return msgspec.structs.replace(answer, index=place, logprobs=logprobs, prompt_logprobs=scores)


def _rank(answer: Output) -> tuple[bool, float, int]:
    total = sum(token.logprob for token in answer.logprobs)
    return answer.error is not None, -total / max(1, len(answer.logprobs)), answer.index


def _join(first: Output, then: Output) -> Output:
    return msgspec.structs.replace(
        then,
        token_ids=first.token_ids + then.token_ids,
        text=first.text + then.text,
        logprobs=first.logprobs + then.logprobs,
        prompt_logprobs=first.prompt_logprobs + then.prompt_logprobs,
    )
