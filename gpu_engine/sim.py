"""The simulated engine: the public face of an engine with set times instead of a model.

Its answers are words made by hashing the prompt, so that they are the same on every run and a lost, doubled
or mixed-up token shows:

    prompt, seed ──BLAKE2b──► key;  key, word number ──BLAKE2b──► "bovek ", "tamil ", …   one token a letter
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Final

from headrace.gpu_engine.api import (
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Output,
    SamplingParams,
    id_in_use,
)
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.check import check_embed
from headrace.gpu_engine.embedding.sim import SIZE, expected_embedding
from headrace.gpu_engine.lora.known import check_adapter
from headrace.gpu_engine.scheduling.limits import Limits
from headrace.gpu_engine.scheduling.turn import Turn, turn_of
from headrace.gpu_engine.scheduling.waiting import WaitingQueue
from headrace.gpu_engine.text.sim import SimTokenizer
from headrace.gpu_engine.text.stream import TextStream, open_text

MAX_INPUT_LENGTH: Final = 8192
MAX_TOTAL_TOKENS: Final = 16384

_CONSONANTS: Final = b"bdfghjklmnprstvz"
_VOWELS: Final = b"aeiou"
_WORD_LENGTH: Final = 6
# While nobody has a token to give, a step waits for the first that will, but no longer than this, so that
# additions and aborts are heard.
_LONGEST_WAIT_S: Final = 0.01
_HANG_S: Final = 3600.0
# How many waiting requests that cannot join are looked past: those that are due, one a lane.
_LOOKAHEAD: Final = 8


def expected_answer(
    prompt_ids: Sequence[int], params: SamplingParams, n: int, adapter: str | None = None
) -> list[int]:
    """The first `n` tokens of the answer to a prompt: ids of SimTokenizer, each an ASCII letter or space.

    They depend on `prompt_ids`, on the name of the LoRA adapter and, where `temperature` is above 0, on
    `seed` (None: 0); on nothing else.
    """
    answer = _Answer(prompt_ids, params, adapter)
    return [answer.token(position) for position in range(n)]


class _Answer:
    """The endless answer to one prompt, position by position from 0."""

    __slots__ = ("_key", "_number", "_word")

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams, adapter: str | None) -> None:
        seed = (params.seed or 0) if params.temperature > 0 else 0
        asked = array("q", prompt_ids).tobytes() + (adapter or "").encode()
        self._key = blake2b(asked, salt=(seed % (1 << 64)).to_bytes(8)).digest()
        self._number = -1
        self._word = b""

    def token(self, position: int) -> int:
        number, place = divmod(position, _WORD_LENGTH)
        if number != self._number:
            self._number, self._word = number, self._make_word(number)
        return self._word[place]

    def _make_word(self, number: int) -> bytes:
        noise = blake2b(number.to_bytes(8), key=self._key, digest_size=_WORD_LENGTH - 1).digest()
        alphabets = (_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS, _CONSONANTS)
        letters = [letters[byte % len(letters)] for letters, byte in zip(alphabets, noise, strict=True)]
        return bytes([*letters, ord(" ")])


@dataclass(slots=True)
class _Request:
    """One unfinished request. `length`: tokens after which it ends, for `reason`."""

    request: EngineRequest
    turn: Turn
    answer: _Answer
    text: TextStream
    length: int
    reason: str
    fails: bool
    num_tokens: int = 0
    ready_at: float = 0.0

    @property
    def eagerness_to_make_room(self) -> tuple[int, int, int, int]:
        """The greatest is preempted first: lowest lane, has had its stay, least to be done again."""
        turn = self.turn
        work = len(self.request.prompt_ids) + self.num_tokens if turn.stay_tokens else 0
        return (turn.priority, -turn.left_of_stay, -work, turn.arrival)


def _crash() -> None:
    os._exit(1)


class SimEngine:
    """Implements `Engine` with `SimConfig` (`config.sim`).

    A request's first token comes `first_token_ms` after it began to run, which at most `max_batch_size` do,
    in the order and by the rules of `scheduling.turn`: higher lanes preempt lower ones. What was
    preempted waits `first_token_ms` again, in place of a prefill, before it goes on. A step takes `step_ms`
    and gives each running request one token. A request without `max_tokens` ends after `sim.tokens` tokens
    with `stop`, with `ignore_eos` at `max_total_tokens`. Limits default to 8192 tokens of input and 16384 in
    all; there is no KV memory. LoRA adapters are names alone: nothing is read.

    `clock` (seconds) and `sleep` are the only sources of time, `crash` ends the process: tests replace them.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        crash: Callable[[], None] = _crash,
    ) -> None:
        self._sim = config.sim
        self._clock, self._sleep, self._crash = clock, sleep, crash
        self._tokenizer = SimTokenizer()
        fingerprint = f"sim-words-1/{self._tokenizer.fingerprint}"
        self._limits = _limits(config, self._tokenizer.vocab_size)
        self._info = EngineInfo(
            model=config.model or "sim",
            fingerprint=fingerprint,
            adapters={name: f"{fingerprint}/{name}" for name in config.lora_modules},
            max_batch_size=config.max_batch_size,
            max_input_length=self._limits.max_input_length,
            max_total_tokens=self._limits.max_total_tokens,
            kv_tokens=self._limits.kv_tokens,
            embedding_size=SIZE,
        )
        self._running: dict[str, _Request] = {}
        self._waiting: dict[str, _Request] = {}
        self._line: WaitingQueue[_Request] = WaitingQueue(config.priority_ageing_ms / 1000)
        self._arrivals = count(1)
        self._ended: dict[str, Output] = {}
        self._steps = 0
        self.preemptions = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._ended)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def stats(self) -> EngineStats:
        """There is no KV memory to tell of."""
        return EngineStats(running=self.num_running, waiting=self.num_waiting, preemptions=self.preemptions)

    def add(self, request: EngineRequest) -> EngineError | None:
        if any(request.id in place for place in (self._running, self._waiting, self._ended)):
            return id_in_use(request.id)
        error = self._limits.check(request) or check_embed(request, SIZE) or _refuse(request.params)
        error = error or check_adapter(request.adapter, self._info.adapters)
        if error is not None:
            return error
        arrival = next(self._arrivals)
        state = self._accept(request, arrival)
        if state.text.stopped or state.num_tokens >= state.length:
            self._ended[request.id] = self._finish(state, state.reason)
        else:
            self._wait(state)
        return None

    def abort(self, request_id: str) -> None:
        state = self._running.pop(request_id, None)
        if state is None and (state := self._waiting.pop(request_id, None)) is not None:
            self._line.remove(state)
        if state is not None:
            self._ended[request_id] = self._finish(state, "abort")

    def step(self) -> list[Output]:
        began = self._clock()
        self._fail_on_purpose()
        self._admit(began)
        self._wait_from(began)
        outputs, self._ended = list(self._ended.values()), {}
        now = self._clock()
        ready = [state for state in self._running.values() if state.ready_at <= now]
        return outputs + [self._advance(state) for state in ready]

    def _accept(self, request: EngineRequest, arrival: int) -> _Request:
        params, prompt = request.params, request.prompt_ids
        room = self._limits.max_output_tokens(len(prompt), params.max_tokens)
        ends_itself = params.max_tokens is None and not params.ignore_eos and self._sim.tokens <= room
        text = open_text(self._tokenizer, prompt, params)
        if request.output_ids:
            text.feed(request.output_ids)
        turn = turn_of(request)
        turn.arrival = arrival
        return _Request(
            request=request,
            turn=turn,
            answer=_Answer(prompt, params, request.adapter),
            text=text,
            length=self._sim.tokens if ends_itself else room,
            reason="stop" if ends_itself else "length",
            fails=self._sim.fail_every > 0 and arrival % self._sim.fail_every == 0,
            num_tokens=len(request.output_ids),
        )

    def _wait(self, state: _Request) -> None:
        self._waiting[state.request.id] = state
        self._line.push(state)

    def _admit(self, now: float) -> None:
        self._line.age(now)
        free = self._info.max_batch_size - len(self._running)
        for state in self._line.candidates(free + _LOOKAHEAD):
            due = self._line.due()
            if self._make_room(state, in_place=due not in (None, state)):
                self._join(state, now)
            elif state is not due:
                return

    def _make_room(self, state: _Request, *, in_place: bool) -> bool:
        """Whether there is a slot for `state`; one of a lower lane gives way if need be. `in_place`: what is
        free belongs to another."""
        if not in_place and len(self._running) < self._info.max_batch_size:
            return True
        lower = [other for other in self._running.values() if other.turn.yields_to(state.turn)]
        if lower:
            self._preempt(max(lower, key=lambda other: other.eagerness_to_make_room))
        return bool(lower)

    def _preempt(self, state: _Request) -> None:
        state.turn.end_stay()
        self._wait(self._running.pop(state.request.id))
        self.preemptions += 1

    def _join(self, state: _Request, now: float) -> None:
        self._line.remove(state)
        self._line.overtake(state.turn.arrival, now)
        state.turn.begin_stay()
        state.ready_at = now + self._sim.first_token_ms / 1000
        self._running[state.request.id] = self._waiting.pop(state.request.id)

    def _wait_from(self, began: float) -> None:
        end = began + self._sim.step_ms / 1000
        if self._running and not self._ended:
            first = min(state.ready_at for state in self._running.values())
            end = max(end, min(first, began + _LONGEST_WAIT_S))
        left = end - self._clock()
        if left > 0:
            self._sleep(left)

    def _advance(self, state: _Request) -> Output:
        request_id = state.request.id
        if state.fails:
            del self._running[request_id]
            message = "The simulated engine fails each request that sim.fail_every tells it to."
            return Output(id=request_id, error=EngineError(code="internal_error", message=message))
        if state.request.embed is not None:
            del self._running[request_id]
            vector = expected_embedding(state.request.prompt_ids, state.request.embed.dimensions)
            return Output(id=request_id, embedding=vector, finish_reason="stop")
        token = state.answer.token(state.num_tokens)
        state.num_tokens += 1
        state.turn.stay_tokens += 1
        text = state.text.feed([token])
        if not state.text.stopped and state.num_tokens < state.length:
            return Output(id=request_id, token_ids=[token], text=text)
        del self._running[request_id]
        return self._finish(state, state.reason, [token], text)

    def _finish(self, state: _Request, reason: str, token_ids: Sequence[int] = (), text: str = "") -> Output:
        """The last output. `reason` is why the answer ends where no stop string ended it."""
        reason = "stop" if state.text.stopped else reason
        text += state.text.flush()
        return Output(id=state.request.id, token_ids=list(token_ids), text=text, finish_reason=reason)

    def _fail_on_purpose(self) -> None:
        self._steps += 1
        if self._steps == self._sim.crash_after_steps:
            self._crash()
        while self._steps == self._sim.hang_after_steps:
            self._sleep(_HANG_S)


def _refuse(params: SamplingParams) -> EngineError | None:
    """What a promise about the answer's form is that words made by hashing cannot keep."""
    lacking = [] if params.grammar is None else [params.grammar.param]
    lacking += [name for name in ("logprobs", "prompt_logprobs") if getattr(params, name) is not None]
    if not lacking:
        return None
    message = f"The simulated engine has no {lacking[0]}; leave it out."
    return EngineError(code="invalid_request", message=message, param=lacking[0])


def _limits(config: EngineConfig, vocab_size: int) -> Limits:
    total = config.max_total_tokens or MAX_TOTAL_TOKENS
    return Limits(
        max_input_length=min(config.max_input_length or MAX_INPUT_LENGTH, total - 1),
        max_total_tokens=total,
        kv_tokens=config.max_batch_size * total,
        block_size=config.block_size,
        vocab_size=vocab_size,
    )
