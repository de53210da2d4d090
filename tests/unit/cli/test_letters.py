"""Dead letters by the page: a hundred thousand of them take no more memory than a few."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Sequence

import pytest

from headrace.broker.contract import DeadLettered
from headrace.broker.message import RequestRef
from headrace.cli import dlq
from headrace.cli.errors import ExitCode
from headrace.cli.letters import PAGE, pages_of, survey_of
from headrace.cli.options import Where
from tests.unit.producer.fake_queue import FakeQueue

MANY = 5 * PAGE + 7
NOW_MS = 1_700_000_000_000


class Letter(DeadLettered):
    """One that can be watched while it lives."""


class Heap(FakeQueue):
    """A broker with `count` dead letters, each made when it is asked for."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.alive = self.most_alive = 0
        self.pages: list[int] = []
        self.replayed: list[str] = []
        self.comes_while_asked = 0

    async def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        for number in range(self.count):
            letter = Letter(f"dlq/{number}", "", "why", b"body", at_ms=NOW_MS + number)
            self.alive += 1
            self.most_alive = max(self.most_alive, self.alive)
            weakref.finalize(letter, self._dropped)
            yield letter
        self.count += self.comes_while_asked

    def _dropped(self) -> None:
        self.alive -= 1

    async def discard(self, positions: Sequence[str]) -> int:
        self.pages.append(len(positions))
        return len(positions)

    async def replay(self, position: str) -> RequestRef | None:
        self.replayed.append(position)
        return RequestRef(f"again-{position}")


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    """The broker that commands of this test find."""
    heap = Heap(MANY)

    async def connect(url: str, *, prefix: str) -> Heap:
        return heap

    monkeypatch.setattr("headrace.cli.running.connect", connect)
    return heap


NOWHERE = Where("redis://nowhere", "headrace")


async def test_a_purge_of_all_holds_few_letters_and_one_page_of_positions(heap: Heap) -> None:
    assert await dlq._purge(NOWHERE, None, 0, yes=True) is ExitCode.OK
    assert (sum(heap.pages), max(heap.pages)) == (MANY, PAGE)
    assert heap.most_alive <= 2


async def test_a_replay_of_all_holds_few_letters_and_keeps_their_order(heap: Heap) -> None:
    assert await dlq._replay(NOWHERE, None) is ExitCode.OK
    assert heap.replayed == [f"dlq/{number}" for number in range(MANY)]
    assert heap.most_alive <= 2


async def test_what_comes_while_the_question_stands_is_not_purged(
    heap: Heap, monkeypatch: pytest.MonkeyPatch
) -> None:
    heap.comes_while_asked = 3
    asked: list[int] = []
    monkeypatch.setattr(dlq, "_confirm", asked.append)
    assert await dlq._purge(NOWHERE, None, 0, yes=False) is ExitCode.OK
    assert (asked, sum(heap.pages)) == ([MANY], MANY)
    assert heap.most_alive <= 2


async def test_named_letters_are_taken_by_the_page_too() -> None:
    named = [f"dlq/{number}" for number in range(PAGE + 1)]
    assert [len(page) async for page in pages_of(Heap(0), named)] == [PAGE, 1]
    assert (await survey_of(Heap(0), named, lambda _: True)).count == PAGE + 1
