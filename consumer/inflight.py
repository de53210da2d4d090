"""One request in the hands of this consumer. A pure state machine: no clock, no broker, no engine.

    WAITING ──its turn──► OPENING ──► PREPARING ──► QUEUED ──placed──► RUNNING ──► ENDING ──► settled
                                                      ▲                   │
                                                      └──── displaced ────┘  (the engine died, a trial)

Every state may go to ENDING at once: refused, cancelled, expired, lost, handed back. One that is WAITING or
OPENING is opened first where its log gets a terminal record. One that is RUNNING waits for the engine's last
output, so that no token is missed.

What belongs to it is kept by its parts: the answers, the past, what is held against it, and the outbox.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec import structs

from headrace.broker.contract import Opened
from headrace.broker.events import Failed, Finished, Started, Terminal
from headrace.broker.fold import Deaths, Fold
from headrace.broker.lines.request import ParsedRequest
from headrace.broker.message import Delivery
from headrace.consumer import failures
from headrace.consumer.answers import Answers, answers_in
from headrace.consumer.doom import Doom
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.failures import Failure
from headrace.consumer.measures import Measures
from headrace.consumer.outbox import Outbox
from headrace.consumer.past import Past
from headrace.consumer.prepare import Prepared, prompt_param
from headrace.consumer.suspicion import Suspicion
from headrace.consumer.tools import AnswerReader
from headrace.gpu_engine.api import EngineRequest, Output
from headrace.gpu_engine.text.tools.formats import CallFormat


class Phase(enum.Enum):
    WAITING = "waiting"
    OPENING = "opening"
    PREPARING = "preparing"
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"


class InFlight:
    """One request: what it is, where it stands, and how it ends.

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
        self.answers = Answers()
        self.past = Past(Fold(), self.body_hash)
        self.suspicion = Suspicion(Deaths(), doubtful=False)
        self.readers: dict[int, AnswerReader] = {}  # of answers that go to a reply topic, by their numbers
        self.key: str | None = None  # its name in the engine, while it is there
        self._measures = Measures(now)

    @property
    def request_id(self) -> str:
        return self.delivery.ref.request_id

    @property
    def position(self) -> str:
        """Where it was first published; twins share it."""
        return self.delivery.position

    @property
    def epoch(self) -> int:
        return self.outbox.epoch if self.outbox is not None else 0

    @property
    def call_format(self) -> CallFormat | None:
        """How calls of tools stand in its answers; None where there are no tools."""
        return None if self.prepared is None else self.prepared.call_format

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that it is for; None before it was read."""
        return None if self.prepared is None else self.prepared.adapter

    @property
    def dropped(self) -> bool:
        """Somebody else owns it: forget it."""
        return self.ending is not None and self.ending.exit is Exit.DROP

    # ------------------------------------------------------------------------------------- beginning

    def opened(self, opened: Opened) -> None:
        """This consumer owns the request from now on."""
        assert opened.state is not None
        self.past = Past(opened.state, self.body_hash)
        doubtful = self.past.may_have_killed(opened.epoch, redelivered=self.delivery.redelivered)
        self.suspicion = Suspicion(opened.state.deaths, doubtful=doubtful)
        self.outbox = Outbox(opened.epoch, opened.state)
        self.answers = answers_in(opened.state)
        first_pull_ms = opened.state.started.at_ms if opened.state.started else opened.now_ms
        self._measures.queued_ms = max(0, first_pull_ms - self.delivery.published_ms)
        if self.phase in (Phase.WAITING, Phase.OPENING):
            self.phase = Phase.PREPARING
        if self.doom is not None and self.ending is None:
            self._end_doomed()
        if opened.cancelled:
            self.stop(Doom.CANCELLED)

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
        self.answers.begin(prepared.num_results, keeps=started.kept > 0)
        for choice, answer in enumerate(self.answers):
            lacking = answer.square(prepared.replayed[choice] if prepared.replayed else "")
            self.outbox.add([], lacking, now, choice=choice)

    # --------------------------------------------------------------------------------- in the engine

    def placed(self, key: str, priority: int) -> EngineRequest:
        """Goes into the engine under `key`; what the engine has to do from where the answer stands."""
        assert self.phase is Phase.QUEUED
        assert self.prepared is not None
        self.phase, self.key = Phase.RUNNING, key
        self.suspicion.placed(self.answers.num_tokens)
        params = self.prepared.params
        scores = None if self.answers.prompt_logprobs else params.prompt_logprobs  # once is enough
        first, *others = self.answers.token_ids()
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
    def proved_innocent(self) -> bool:
        """A token that it brought since it was put into the engine stands in the log."""
        return self.outbox is not None and self.suspicion.proved_innocent(self.outbox.written.num_tokens)

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

    def state_deaths(self, *, alone: bool) -> None:
        """The log is to say what is held against it, and whether it will be alone in the engine."""
        if self.outbox is not None and self.ending is None:
            deaths = self.suspicion.deaths
            self.outbox.restate(deaths=deaths.all, lone_deaths=deaths.lone, alone=alone)

    def received(self, output: Output, now: float) -> None:
        """What one step of the engine brought; the last one of all answers ends the request. An answer that
        an engine before this one brought to its end is told again, and not heard."""
        if self.phase is not Phase.RUNNING or self.answers[output.index].reason is not None:
            return
        self._take(output, now)
        if output.error is not None:
            param = self._users_param(output.error.param)
            self.fail(failures.refused_by_engine(output.error, param), now)
        elif output.finish_reason is not None:
            self.answers.end(output)
            if self.answers.all_ended:
                self._all_ended(now)

    def _take(self, output: Output, now: float) -> None:
        assert self.outbox is not None
        if output.token_ids:
            self._measures.brought_tokens(now)
            if self.suspicion.brought_token():
                self.outbox.cleared()
        fresh = self.answers.take(output)
        self.outbox.add(
            fresh.token_ids,
            fresh.text,
            now,
            fresh.logprobs,
            choice=output.index,
            prompt_logprobs=fresh.prompt_logprobs,
        )

    def _all_ended(self, now: float) -> None:
        reasons, vectors = self.answers.reasons(), self.answers.vectors()
        if "abort" in reasons:
            self._aborted(now)
            return
        several = reasons if len(reasons) > 1 and not vectors else ()
        figures = self._measures.figures(self.prepared, self.answers, now)
        self.end(Ending(Exit.DONE, Finished(self.epoch, reasons[0], *figures, several, vectors)))

    def _users_param(self, param: str) -> str:
        """The engine knows token ids only."""
        return prompt_param(self.parsed) if param == "prompt_ids" and self.parsed is not None else param

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
            figures = self._measures.figures(self.prepared, self.answers, now)
            failed = Failed(
                self.epoch, failure.code, failure.message, failure.status, failure.param, *figures
            )
        self.end(failure.ending(failed))

    def fail_finished(self, failure: Failure, now: float) -> None:
        """It had come to its end, and cannot be settled so: it fails instead, unless it leaves in another way
        by now."""
        if self.ending is not None and isinstance(self.ending.terminal, Finished):
            self.ending = None
            self.fail(failure, now)

    def fail_to_go(self, failure: Failure, now: float) -> None:
        """It was to go on elsewhere, or later, and cannot: it fails instead. Where it was never opened, its
        log is not ours to end, and it stays where it stands."""
        if self.ending is None or self.ending.exit not in (Exit.RETRY, Exit.MOVE):
            return
        if self.outbox is None:
            self.overrule(Ending(Exit.RELEASE, reason=failure.message))
            return
        self.ending = None
        self.fail(failure, now)

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
