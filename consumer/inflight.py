"""One request in the hands of this consumer. A pure state machine: no clock, no broker, no engine.

    WAITING ──its turn──► OPENING ──► PREPARING ──► QUEUED ──placed──► RUNNING ──► ENDING ──► settled
                                                      ▲                   │
                                                      └──── displaced ────┘  (the engine died, a trial)

Every state may go to ENDING at once: refused, cancelled, expired, lost, handed back. One that is WAITING or
OPENING is opened first where its log gets a terminal record. One that is RUNNING waits for the engine's last
output, so that no token is missed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from struct import pack

import msgspec
from msgspec import structs

from headrace.broker.contract import Opened
from headrace.broker.events import (
    Event,
    Failed,
    Finished,
    Started,
    Terminal,
    Timings,
    TokenLogprobs,
    Usage,
)
from headrace.broker.fold import Deaths, Fold
from headrace.broker.lines.request import ParsedRequest
from headrace.broker.message import Delivery
from headrace.consumer import failures
from headrace.consumer.answer import Answer, answers_in
from headrace.consumer.doom import Doom
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.failures import Failure
from headrace.consumer.logprobs import logged
from headrace.consumer.measures import Measures
from headrace.consumer.outbox import Outbox
from headrace.consumer.prepare import Prepared, prompt_param
from headrace.gpu_engine.api import EngineRequest, Output
from headrace.gpu_engine.sampling.check import MAX_ANSWERS
from headrace.gpu_engine.text.tools.formats import CallFormat


class Phase(enum.Enum):
    WAITING = "waiting"
    OPENING = "opening"
    PREPARING = "preparing"
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"


class InFlight:
    """One request: what it is, what was generated, what the log holds of it, and how it ends.

    Times are seconds of one monotonic clock, given by the caller.
    """

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.body_hash = delivery.message.body_hash
        self.phase = Phase.WAITING
        self.ending: Ending | None = None
        self.doom: Doom | None = None
        self.parsed: ParsedRequest | None = None
        self.custom_id: str | None = None
        self.prepared: Prepared | None = None
        self.outbox: Outbox | None = None
        self.seed = 0
        self.kept = 0  # tokens of earlier owners that stay part of the answers
        self.answers = [Answer()]  # by their number; of texts that are embedded one for each
        self._num_open = 1  # of the answers: the engine is to bring their ends
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.key: str | None = None  # its name in the engine, while it is there
        self.tokens_when_placed = 0
        self.deaths = Deaths()  # of engines and owners with it, in a row, without a token of it in between
        self.state = Fold()  # the log at the open
        self.doubtful = False  # somebody who had it before may have died of it
        self._measures = Measures(now)

    @property
    def request_id(self) -> str:
        return self.delivery.ref.request_id

    @property
    def position(self) -> str:
        """Unique among the deliveries that one consumer holds."""
        return self.delivery.position

    @property
    def epoch(self) -> int:
        return self.outbox.epoch if self.outbox is not None else 0

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.answers[0].text

    @property
    def call_format(self) -> CallFormat | None:
        """How calls of tools stand in its answers; None where there are no tools."""
        return None if self.prepared is None else self.prepared.call_format

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def urgent(self) -> bool:
        """Whether its tokens go into the log at once: somebody streams them, or the answer ends."""
        return self.delivery.message.stream or self.ending is not None

    @property
    def dropped(self) -> bool:
        """Somebody else owns it: forget it."""
        return self.ending is not None and self.ending.exit is Exit.DROP

    @property
    def ends_in_one_call(self) -> bool:
        """Whether its end takes along what its log lacks. Chunks for a reply topic go with an append."""
        ending, message = self.ending, self.delivery.message
        has_end = ending is not None and ending.exit is Exit.DONE and ending.terminal is not None
        return has_end and not (message.stream and message.reply_to)

    @property
    def flushed(self) -> bool:
        """Nothing of it is left to append before it is settled."""
        if self.outbox is None:
            return True
        return not self.outbox.on_wire if self.ends_in_one_call else self.outbox.empty

    def give_up_unwritten(self) -> None:
        """Nothing can be appended any more: an end that would leave a gap in the log is another owner's."""
        if self.outbox is not None and not self.flushed:
            self.outbox.discard(self.outbox.epoch)
            self.overrule(Ending(Exit.RELEASE))

    def take_rest(self) -> tuple[Event, ...]:
        """What its log lacks, for the settlement to take along."""
        return self.outbox.take() if self.outbox is not None and self.ends_in_one_call else ()

    # ------------------------------------------------------------------------------------- beginning

    def opened(self, opened: Opened) -> None:
        """This consumer owns the request from now on."""
        assert opened.state is not None
        self.state = opened.state
        self.deaths = opened.state.deaths
        self.doubtful = self._is_doubtful(opened.epoch)
        self.outbox = Outbox(opened.epoch, opened.state)
        self.answers = answers_in(opened.state, MAX_ANSWERS)
        self.prompt_logprobs = list(opened.state.prompt_logprobs)
        first_pull_ms = opened.state.started.at_ms if opened.state.started else opened.now_ms
        self._measures.queued_ms = max(0, first_pull_ms - self.delivery.published_ms)
        if self.phase in (Phase.WAITING, Phase.OPENING):
            self.phase = Phase.PREPARING
        if self.doom is not None and self.ending is None:
            self._end_doomed()
        if opened.cancelled:
            self.stop(Doom.CANCELLED)

    def _is_doubtful(self, epoch: int) -> bool:
        """Whether the owner before may have died of it: it had it, and did not hand it on in order."""
        last = self.state.put_off
        in_order = last is not None and last.epoch >= epoch - 1
        was_had = self.delivery.redelivered and epoch > 1 and not in_order
        return was_had or (self.deaths.all > 0 and not self.was_read)

    @property
    def was_read(self) -> bool:
        """Whether an owner got through its body."""
        return self.state.started is not None and bool(self.state.started.fingerprint)

    @property
    def has_begun(self) -> bool:
        """Whether somebody began it before."""
        return self.state.started is not None

    def resumable(self, fingerprints: Collection[str]) -> bool:
        """Whether the tokens in the log may be continued by who makes tokens of these fingerprints: it is the
        same body, and one of these models."""
        last = self.state.started
        return last is not None and last.fingerprint in fingerprints and last.body_hash == self.body_hash

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that it is for; None before it was read."""
        return None if self.prepared is None else self.prepared.adapter

    @property
    def last_seed(self) -> int | None:
        """The seed that the last owner used, if there was one."""
        return self.state.started.seed if self.state.started else None

    def mark(self, started: Started, now: float) -> None:
        """The log is to say who has it before its body is read: so a death of it counts."""
        assert self.phase is Phase.PREPARING
        assert self.outbox is not None
        self.outbox.mark(started, now)

    def begin(self, prepared: Prepared, started: Started, now: float) -> None:
        """Ready for the engine. `started.kept` is all that the log holds, or 0 for a fresh start."""
        assert self.phase is Phase.PREPARING
        assert self.outbox is not None
        self.phase = Phase.QUEUED
        self.prepared, self.seed, self.kept = prepared, started.seed, started.kept
        self._measures.began(now)
        self.outbox.begin(started, now)
        known = self.answers if started.kept else []
        wanted = prepared.num_results
        self.answers = [*known[:wanted], *(Answer() for _ in range(wanted - len(known)))]
        self.prompt_logprobs = self.prompt_logprobs if started.kept else []
        for choice in range(wanted):
            self._square(choice, prepared.replayed[choice] if prepared.replayed else "", now)

    def _square(self, choice: int, replayed: str, now: float) -> None:
        """Squares the text in the log with what the engine takes as shown for the same tokens.

        They differ where the last owner wrote all of an answer, the held-back end of its text included, and
        died before it settled: the engine will give that end again.
        """
        answer = self.answers[choice]
        answer.skip = max(0, len(answer.text) - len(replayed))
        self._extend(choice, [], replayed[len(answer.text) :], now)

    # --------------------------------------------------------------------------------- in the engine

    def placed(self, key: str, priority: int) -> EngineRequest:
        """Goes into the engine under `key`; what the engine has to do from where the answer stands."""
        assert self.phase is Phase.QUEUED
        assert self.prepared is not None
        self.phase, self.key, self.tokens_when_placed = Phase.RUNNING, key, self.num_tokens
        self._num_open = sum(answer.reason is None for answer in self.answers)
        params = self.prepared.params
        scores = None if self.prompt_logprobs else params.prompt_logprobs  # once is enough
        first, *others = [answer.token_ids.copy() for answer in self.answers]
        return EngineRequest(
            id=key,
            prompt_ids=self.prepared.prompt_ids,
            params=msgspec.structs.replace(params, seed=self.seed, prompt_logprobs=scores),
            output_ids=first,
            other_outputs=others if any(others) else [],
            priority=priority,
            deadline_ms=self.delivery.message.deadline_ms,
            embed=self.prepared.embed,
            adapter=self.prepared.adapter,
        )

    def displaced(self, now: float) -> None:
        """Is in the engine no longer. Unfinished, it waits for the next one, unless it was to be stopped."""
        self.key = None
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.QUEUED
        if self.doom is not None:
            self._end_doomed(now)

    @property
    def barren(self) -> bool:
        """Brought no token since it was put into the engine."""
        return self.num_tokens == self.tokens_when_placed

    @property
    def has_open_answers(self) -> bool:
        """The engine has not said its last word of all of them, but for one that has failed now."""
        return self._num_open > 1

    @property
    def proved_innocent(self) -> bool:
        """A token that it brought since it was put into the engine stands in the log."""
        return self.outbox is not None and self.outbox.num_logged > self.tokens_when_placed

    @property
    def stated(self) -> Started | None:
        """What the log says of it; None while that is about to change."""
        return self.outbox.stated if self.outbox is not None and self.outbox.empty else None

    @property
    def stated_alone(self) -> bool:
        """The log says that nothing else is in the engine with it."""
        return self.stated is not None and self.stated.alone

    @property
    def stated_in_company(self) -> bool:
        """The log says that others are with it."""
        return self.stated is not None and not self.stated.alone

    def engine_died(self, *, alone: bool) -> None:
        """The engine died with it; `alone`: nothing else was in there."""
        if self.barren:
            self.deaths = Deaths(self.deaths.all + 1, self.deaths.lone + alone)

    def state_deaths(self, *, alone: bool) -> None:
        """The log is to say what is held against it, and whether it will be alone in the engine."""
        if self.outbox is not None and self.ending is None:
            self.outbox.restate(deaths=self.deaths.all, lone_deaths=self.deaths.lone, alone=alone)

    def received(self, output: Output, now: float) -> None:
        """What one step of the engine brought; the last one of all answers ends the request. An answer that
        an engine before this one brought to its end is told again, and not heard."""
        answer = self.answers[output.index]
        if self.phase is not Phase.RUNNING or answer.reason is not None:
            return
        if output.token_ids:
            self._measures.brought_tokens(now)
            self._clear()
        self._take(output, answer, now)
        if output.error is not None:
            param = self._users_param(output.error.param)
            self.fail(failures.refused_by_engine(output.error, param), now)
        elif output.finish_reason is not None:
            answer.reason, answer.embedding = output.finish_reason, output.embedding
            self._num_open -= 1
            if not self._num_open:
                self._all_ended(now)

    def _take(self, output: Output, answer: Answer, now: float) -> None:
        answer.cached_tokens = output.cached_tokens
        shown, answer.skip = output.text[answer.skip :], max(0, answer.skip - len(output.text))
        of_prompt = [logged(each) for each in output.prompt_logprobs]
        self.prompt_logprobs.extend(of_prompt)
        logprobs = [logged(each) for each in output.logprobs]
        self._extend(output.index, output.token_ids, shown, now, logprobs, of_prompt)

    def _all_ended(self, now: float) -> None:
        reasons = tuple(str(answer.reason) for answer in self.answers)
        if "abort" in reasons:
            self._aborted(now)
            return
        vectors = tuple(_bytes_of(answer.embedding) for answer in self.answers if answer.embedding)
        several = reasons if len(reasons) > 1 and not vectors else ()
        self.end(Ending(Exit.DONE, Finished(self.epoch, reasons[0], *self._figures(now), several, vectors)))

    def _clear(self) -> None:
        """A token of it is here: nothing is held against it any more."""
        if self.barren:
            assert self.outbox is not None
            self.deaths = Deaths()
            self.outbox.cleared()

    def _users_param(self, param: str) -> str:
        """The engine knows token ids only."""
        return prompt_param(self.parsed) if param == "prompt_ids" and self.parsed is not None else param

    def _extend(
        self,
        choice: int,
        token_ids: list[int],
        text: str,
        now: float,
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        assert self.outbox is not None
        answer = self.answers[choice]
        answer.token_ids.extend(token_ids)
        answer.logprobs.extend(logprobs)
        if text:
            answer.pieces.append(text)
        self.outbox.add(token_ids, text, now, logprobs, choice=choice, prompt_logprobs=prompt_logprobs)

    def _aborted(self, now: float) -> None:
        if self.doom is not None:
            self._end_doomed(now)
        else:
            self.fail(failures.GIVEN_UP, now)

    # ---------------------------------------------------------------------------------------- ending

    def stop(self, doom: Doom, now: float | None = None) -> bool:
        """Cancelled, expired or called back; the first of them counts. True: the engine must abort it, and
        its last output will end it. Otherwise it ended now, or will as soon as it is opened."""
        if self.ending is not None or self.doom is not None:
            return False
        self.doom = doom
        if self.phase is Phase.RUNNING:
            return True
        if self.phase not in (Phase.WAITING, Phase.OPENING):
            self._end_doomed(now)
        return False

    def fail(self, failure: Failure, now: float | None = None) -> None:
        """Ends it as the table of failures says; one that must not end is nobody's to pass here."""
        failed = None
        if failure.terminal:
            figures = self._figures(now)
            failed = Failed(
                self.epoch, failure.code, failure.message, failure.status, failure.param, *figures
            )
        self.end(failure.ending(failed))

    def end(self, ending: Ending) -> None:
        """Decides how it leaves; the first decision stands, see `overrule`."""
        if self.ending is None:
            self.overrule(ending)

    def overrule(self, ending: Ending) -> None:
        """What the broker says about ownership counts more than what was decided here."""
        self.ending, self.phase = ending, Phase.ENDING

    def disowned(self, ending: Ending) -> None:
        """The broker says that this delivery is not to be run: nothing more goes into the log."""
        self.outbox = None
        self.overrule(ending)

    def terminal(self) -> Terminal | None:
        """The terminal record, under the epoch in force."""
        if self.ending is None or self.ending.terminal is None:
            return None
        return structs.replace(self.ending.terminal, epoch=self.epoch)

    def _end_doomed(self, now: float | None = None) -> None:
        assert self.doom is not None
        failure = self.doom.ending()
        if failure is None:
            self.end(Ending(Exit.RELEASE))
        else:
            self.fail(failure, now)

    def _figures(self, now: float | None = None) -> tuple[Usage, Timings]:
        prompt = self.prepared.num_prompt_tokens if self.prepared else 0
        is_one_prompt = self.prepared is None or self.prepared.embed is None
        prompts = self.answers[:1] if is_one_prompt else self.answers
        self._measures.cached_tokens = sum(one.cached_tokens for one in prompts)
        return self._measures.figures(prompt, self.num_tokens, now)


def _bytes_of(vector: Sequence[float]) -> bytes:
    """As a log holds it."""
    return pack(f"<{len(vector)}f", *vector)
