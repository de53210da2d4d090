"""Several texts in one request, as an engine around an engine: the inner one makes one vector a request.

    add(embed, 3 texts) ──► three requests ──► outputs of one id, with index 0, 1, 2, in whatever order

All are accepted, or none is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from headrace.gpu_engine.api import CountingEngine, EngineError, EngineRequest, Output, id_in_use
from headrace.gpu_engine.around import EngineAround, member_id

MOST_NUMBERS: Final = 1 << 18
"""Of all vectors of one request: what they go through on their way, such as a line, is bounded."""


class SeveralTexts(EngineAround[CountingEngine]):
    """Implements `Engine` over another one. What is no request for several vectors passes untouched."""

    def __init__(self, engine: CountingEngine) -> None:
        super().__init__(engine)
        self._open: dict[str, set[int]] = {}
        self._members: dict[str, tuple[str, int]] = {}
        self._refused: set[str] = set()

    def add(self, request: EngineRequest) -> EngineError | None:
        if request.id in self._open:
            return id_in_use(request.id)
        if request.embed is None or not request.embed.others:
            return self._engine.add(request)
        members = _members(request)
        error = _too_many(request, self.info.embedding_size) or self._add_all(members)
        if error is None:
            self._open[request.id] = set(range(len(members)))
            self._members |= {member.id: (request.id, index) for index, member in enumerate(members)}
        return error

    def abort(self, request_id: str) -> None:
        if request_id not in self._open:
            self._engine.abort(request_id)
            return
        for index in self._open[request_id]:
            self._engine.abort(member_id(request_id, index))

    def step(self) -> list[Output]:
        outputs = self._engine.step()
        if not (self._members or self._refused):
            return outputs
        return [told for output in outputs for told in self._tell(output)]

    def _add_all(self, members: list[EngineRequest]) -> EngineError | None:
        for index, member in enumerate(members):
            error = self._engine.add(member)
            if error is None:
                continue
            for accepted in members[:index]:
                self._engine.abort(accepted.id)
                self._refused.add(accepted.id)
            param = f"input[{index}]" if error.param == "prompt_ids" else error.param
            return msgspec.structs.replace(error, param=param)
        return None

    def _tell(self, output: Output) -> Iterable[Output]:
        if output.id in self._refused:
            self._refused.discard(output.id)
            return ()
        if output.id not in self._members:
            return (output,)
        name, index = self._members[output.id]
        if output.is_last:
            del self._members[output.id]
            self._open[name].discard(index)
            if not self._open[name]:
                del self._open[name]
        return (msgspec.structs.replace(output, id=name, index=index),)


def _members(request: EngineRequest) -> list[EngineRequest]:
    assert request.embed is not None
    alone = msgspec.structs.replace(request.embed, others=[])
    texts = [request.prompt_ids, *request.embed.others]
    return [
        msgspec.structs.replace(request, id=member_id(request.id, index), prompt_ids=ids, embed=alone)
        for index, ids in enumerate(texts)
    ]


def _too_many(request: EngineRequest, size: int) -> EngineError | None:
    assert request.embed is not None
    texts, numbers = 1 + len(request.embed.others), request.embed.dimensions or size
    if texts * numbers <= MOST_NUMBERS:
        return None
    message = (
        f"{texts} texts of {numbers} numbers each are more than the {MOST_NUMBERS} numbers of one request; "
        "send fewer texts at a time, or ask for fewer dimensions."
    )
    return EngineError(code="invalid_request", message=message, param="input")
