"""Several answers to one prompt, as an engine around an engine: the inner one knows only single answers.

    add(n = 3) ──► answer 0 joins, computes the prompt, brings its first token
                     └──► answers 1, 2 join: they share the prompt's full blocks, get a copy of the one that
                          is not full, and compute its last token again (`scheduling.prefixes`)

So a prompt is computed once. Where the first answer does not run any more by then, or has lost its place, the
prefix cache serves, as it does after a preemption. Answers that were interrupted go on in the same way, each
from its own tokens; one that had ended by then brings its end again. The best of several have no tokens to go
on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.gpu_engine.api import (
    CountingEngine,
    EngineError,
    EngineRequest,
    Output,
    SamplingParams,
    id_in_use,
)
from headrace.gpu_engine.around import EngineAround, member_id
from headrace.gpu_engine.best_of import BestOf
from headrace.gpu_engine.sampling.check import check_params
from headrace.gpu_engine.sampling.noise import derive_seed


class FanOut(EngineAround[CountingEngine]):
    """Implements `Engine` over another one. Requests for a single answer pass through untouched."""

    def __init__(self, engine: CountingEngine) -> None:
        super().__init__(engine)
        self._families: dict[str, _Family] = {}
        self._members: dict[str, tuple[_Family, int]] = {}

    def add(self, request: EngineRequest) -> EngineError | None:
        if _count(request.params) == 1 and request.id not in self._families:
            return self._engine.add(request)
        error = self._refuse(request)
        if error is not None:
            return error
        family = _Family(request)
        error = self._engine.add(family.member(0))
        if error is not None:
            return family.explain(error)
        self._families[request.id] = family
        self._members[family.name(0)] = family, 0
        return None

    def abort(self, request_id: str) -> None:
        family = self._families.get(request_id)
        if family is not None:
            family.is_aborted = True
        for name in [request_id] if family is None else family.names:
            self._engine.abort(name)

    def step(self) -> list[Output]:
        outputs = self._engine.step()
        if not self._members:
            return outputs
        return [told for output in outputs for told in self._tell(output)]

    def _refuse(self, request: EngineRequest) -> EngineError | None:
        if request.id in self._families:
            return id_in_use(request.id)
        return check_params(request.params) or _check_outputs(request)

    def _tell(self, output: Output) -> Iterable[Output]:
        if output.id not in self._members:
            return [output]
        family, index = self._members[output.id]
        outputs = [family.rename(output, index)]
        if family.is_waiting:
            outputs += self._let_join(family, output)
        for ended in [one.index for one in outputs if one.is_last]:
            family.open.discard(ended)
            self._members.pop(family.name(ended), None)
        if not family.open:
            del self._families[family.request.id]
        return family.choose(outputs)

    def _let_join(self, family: _Family, first: Output) -> list[Output]:
        """The other answers join once the prompt is computed; if that never came to be, they share its fate.
        Returns what they bring of an end already. Those of an interrupted request have texts of their own to
        end with, even where it is aborted before they could join."""
        family.is_waiting = False
        others = range(1, family.count)
        if first.error is not None or (first.finish_reason == "abort" and not family.goes_on):
            return [family.rename(first, index) for index in others]
        ends = []
        for index in others:
            error = self._engine.add(family.member(index))
            if error is None:
                self._members[family.name(index)] = family, index
                if family.is_aborted:
                    self._engine.abort(family.name(index))
            else:
                ends.append(Output(id=family.request.id, index=index, error=error))
        return ends


class _Family:
    """The answers to one request. `open`: numbers of those that have not ended. `is_waiting`: only the first
    one runs. `is_aborted`: those that have not joined yet are to end as soon as they do."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.count = _count(request.params)
        self.open = set(range(self.count))
        self.is_waiting = True
        self.is_aborted = False
        self._best = BestOf(request.params) if self.count > request.params.n else None

    @property
    def goes_on(self) -> bool:
        """Whether it was interrupted, and has tokens already."""
        return bool(self.request.output_ids or self.request.other_outputs)

    @property
    def names(self) -> Sequence[str]:
        return [self.name(index) for index in range(self.count)]

    def name(self, index: int) -> str:
        """The id of an answer in the inner engine."""
        return member_id(self.request.id, index)

    def member(self, index: int) -> EngineRequest:
        """What asks the inner engine for answer number `index`. Only the first tells of the prompt."""
        params = self.request.params
        params = params if self._best is None else self._best.scored(params)
        seed = None if params.seed is None else derive_seed(params.seed, index)
        scores = None if index else params.prompt_logprobs
        own = msgspec.structs.replace(params, n=1, best_of=None, seed=seed, prompt_logprobs=scores)
        outputs = [self.request.output_ids, *self.request.other_outputs]
        return msgspec.structs.replace(
            self.request,
            id=self.name(index),
            params=own,
            output_ids=outputs[index] if index < len(outputs) else [],
            other_outputs=[],
            prompt_of=self.name(0) if index else None,
        )

    def rename(self, output: Output, index: int) -> Output:
        return msgspec.structs.replace(output, id=self.request.id, index=index)

    def explain(self, error: EngineError) -> EngineError:
        """Why a member was refused, in terms of the request."""
        return error if self._best is None else self._best.explain(error)

    def choose(self, outputs: list[Output]) -> Iterable[Output]:
        """What the user sees of these outputs."""
        return outputs if self._best is None else self._best.take(outputs, all_ended=not self.open)


def _check_outputs(request: EngineRequest) -> EngineError | None:
    """Whether interrupted answers can go on."""
    params, others = request.params, request.other_outputs
    if not request.output_ids and not others:
        return None
    if _count(params) > params.n:
        message = "The best of several answers are known when all have ended: none can go on from output_ids."
        return EngineError(code="invalid_request", message=message, param="best_of")
    if len(others) not in (0, params.n - 1):
        message = (
            f"other_outputs has {len(others)} answers; n is {params.n}, so there must be {params.n - 1}."
        )
        return EngineError(code="invalid_request", message=message, param="other_outputs")
    return None


def _count(params: SamplingParams) -> int:
    return params.n if params.best_of is None else params.best_of
