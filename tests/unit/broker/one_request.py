"""One request, its log, and several owners of it: crashed, frozen, woken, repeating themselves.

An owner follows the protocol: fence, read, `started`, token after token, end. Every one of these is a step,
and the schedule says who takes the next. A token is made from the text that stands before it, so a text that
was stitched from two owners' shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.broker.events import Delta, Event, Fence, Finished, Started
from headrace.broker.fold import Fold

TOKENS = 4
Action: TypeAlias = Literal["act", "repeat", "take over", "take over anew"]
Step: TypeAlias = tuple[Action, int]  # what, and which of the owners


def next_token(before: str) -> tuple[int, str]:
    digest = hashlib.sha256(before.encode()).hexdigest()
    return int(digest[:4], 16), digest[:2] + "."


def whole_answer() -> str:
    text = ""
    for _ in range(TOKENS):
        text += next_token(text)[1]
    return text


@dataclass(slots=True)
class Owner:
    """One who has, or once had, the right to write. `anew`: it cannot use the tokens it finds."""

    world: World
    epoch: int
    anew: bool
    found: str | None = None
    fence: int = -1
    last: Event | None = None
    program: Iterator[None] = field(init=False)

    def __post_init__(self) -> None:
        self.program = self._run()

    def act(self) -> bool:
        """One step; False when there is nothing left to do."""
        return next(self.program, self) is None

    def repeat(self) -> None:
        """A duplicate append of whatever came last."""
        if self.last is not None:
            self.world.log.append(self.last)

    def write(self, event: Event) -> None:
        self.last = event
        self.world.log.append(event)

    def _run(self) -> Iterator[None]:
        self.fence = len(self.world.log)
        self.write(Fence(self.epoch))
        yield
        state = self.world.fold(self.world.log[: self.fence + 1])
        self.found = state.text
        if state.ended:
            return
        yield
        text, kept = ("", 0) if self.anew else (state.text, len(state.token_ids))
        self.write(Started(self.epoch, f"owner {self.epoch}", "d", 1, b"", "m", kept))
        yield
        seq = state.next_seq
        for _ in range(kept, TOKENS):
            token_id, piece = next_token(text)
            self.write(Delta(self.epoch, seq, (token_id,), piece))
            seq, text = seq + 1, text + piece
            yield
        self.write(Finished(self.epoch, "stop"))
        yield


@dataclass(slots=True)
class World:
    """The log and all owners so far."""

    fold_type: type[Fold] = Fold
    log: list[Event] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)

    def fold(self, events: Sequence[Event]) -> Fold:
        state = self.fold_type()
        for event in events:
            state.read(event)
        return state

    def take_over(self, anew: bool = False) -> Owner:
        self.owners.append(Owner(self, len(self.owners) + 1, anew))
        return self.owners[-1]

    def run(self, schedule: Sequence[Step], rest: Sequence[int]) -> None:
        """The schedule, and then a healthy owner to the end; `rest` says who else wakes meanwhile."""
        for action, who in schedule:
            match action:
                case "take over" | "take over anew":
                    self.take_over(anew=action == "take over anew")
                case "act" if self.owners:
                    self.owners[who % len(self.owners)].act()
                case "repeat" if self.owners:
                    self.owners[who % len(self.owners)].repeat()
        healthy, wakers = self.take_over(), iter(rest)
        while healthy.act():
            self.owners[next(wakers, 0) % len(self.owners)].act()
        for who in rest:
            self.owners[who % len(self.owners)].act()


def check(world: World) -> None:
    """What the fold promises of any log that owners following the protocol can write."""
    _check_end(world)
    _check_what_readers_see(world)
    _check_what_owners_found(world)


def _check_end(world: World) -> None:
    whole = world.fold(world.log)
    assert whole.terminal is not None, "the healthy owner came to an end"
    assert whole.text == whole_answer(), f"one unbroken text was expected: {whole.text}"
    assert len(whole.token_ids) == TOKENS


def _check_what_readers_see(world: World) -> None:
    """Shown text only grows, but for a restart; the numbers of what counts never repeat; an end is final."""
    state, shown, restarts, numbers = world.fold_type(), "", 0, []
    ended: Event | None = None
    for event in world.log:
        counts = state.read(event)
        if counts and isinstance(event, Delta):
            numbers.append(event.seq)
        assert ended is None or (state.terminal is ended and state.text == shown), "the end was not final"
        assert state.text.startswith(shown) or state.restarts > restarts, "a token was taken back"
        assert whole_answer().startswith(state.text), f"two texts in one: {state.text}"
        shown, restarts, ended = state.text, state.restarts, state.terminal
    assert numbers == sorted(set(numbers)), f"a number was used twice: {numbers}"


def _check_what_owners_found(world: World) -> None:
    """Who fenced and read knows what readers were shown when its `started` came into force."""
    for owner in world.owners:
        starts = [e for e in world.log if isinstance(e, Started) and e.epoch == owner.epoch]
        if owner.found is None or not starts:
            continue
        place = world.log.index(starts[0])
        before = world.fold(world.log[:place])
        if before.epoch == owner.epoch and not before.ended:
            assert before.text == owner.found, "something came between the fence and the start"
