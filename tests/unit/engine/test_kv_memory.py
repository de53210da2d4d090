"""Copies and swaps: whatever is shared, copied or sent to the host, each table reads what its owner wrote."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.memory.moves import BlockMoves, PendingMoves
from headrace.gpu_engine.memory.swap_space import SwapSpace

BLOCK = 3


def test_a_table_shares_full_blocks_and_gets_a_copy_of_one_that_is_not() -> None:
    kv = KVMemory(9, BLOCK)
    table = kv.acquire([], 7)
    child = kv.acquire(table[:2], 7, table[2])
    assert child[:2] == table[:2]
    assert child[2] != table[2]
    assert kv.take_moves() == BlockMoves(copies=[(table[2], child[2])], copies_out=[], copies_in=[])
    assert (kv.num_used, kv.free_blocks_needed(table[:2], 7)) == (4, 1)
    kv.check_invariants([table, child])


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    kv = KVMemory(5, BLOCK)
    table = kv.acquire([], 4)
    child = kv.acquire(table[:1], 4, table[1])
    kv.release(table)
    assert kv.num_used == 2
    kv.release(child)
    assert kv.num_used == 0


def test_a_copy_of_a_copy_of_the_same_step_reads_the_first_source() -> None:
    moves = PendingMoves()
    moves.copy(1, 2)
    moves.copy(2, 3)
    moves.copy_out(3, 0)
    assert moves.take() == BlockMoves([(1, 2), (1, 3)], [(1, 0)], [])


def test_a_copy_of_what_comes_from_the_host_comes_from_there_too() -> None:
    moves = PendingMoves()
    moves.copy_in(4, 1)
    moves.copy(1, 2)
    assert moves.take() == BlockMoves([], [], [(4, 1), (4, 2)])


def test_a_copy_into_a_block_that_was_handed_out_anew_is_not_done() -> None:
    kv = KVMemory(4, BLOCK)
    table = kv.acquire([], 4)
    kv.release(kv.acquire(table[:1], 4, table[1]))
    kv.allocate(1)
    assert kv.take_moves().copies == []


def test_what_does_not_fit_on_the_host_is_not_swapped_out() -> None:
    kv = KVMemory(9, BLOCK, num_host_slots=2)
    assert kv.swap_out(kv.acquire([], 7)) is None
    assert kv.host_slots_used == 0
    assert kv.swap_out(kv.acquire([], 6)) is not None
    assert kv.host_slots_used == 2


def test_a_slot_that_the_planned_step_reads_is_not_written_by_it() -> None:
    kv = KVMemory(9, BLOCK, num_host_slots=1)
    slots = kv.swap_out(kv.acquire([], 3))
    assert slots is not None
    kv.swap_in(slots, kv.acquire([], 3), 0)
    other = kv.acquire([], 3)
    assert kv.swap_out(other) is None
    kv.take_moves()
    assert kv.swap_out(other) == slots


def test_a_host_slot_held_twice_is_seen() -> None:
    space = SwapSpace(3)
    slots = space.take(2)
    space.check_invariants(slots)
    space.give_back(slots)
    with pytest.raises(AssertionError, match="held twice"):
        space.check_invariants(slots)


@dataclass(slots=True)
class Table:
    """A sequence: what its owner wrote, and where that stands: in `blocks`, or in host `slots`."""

    tokens: list[int]
    blocks: list[int]
    slots: list[int] | None = None


class MovingMachine(RuleBasedStateMachine):
    """Sequences that grow, fork, go to the host and come back, several such things a step, against a device
    and a host that do exactly what a runner is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVMemory(14, BLOCK, num_host_slots=6)
        self.device: dict[int, list[int]] = {block: [] for block in range(14)}
        self.host: dict[int, list[int]] = {slot: [] for slot in range(6)}
        self.tables: list[Table] = []
        self.written = 0

    def pick(self, choice: int, *, on_host: bool) -> Table | None:
        tables = [table for table in self.tables if (table.slots is not None) == on_host]
        return tables[choice % len(tables)] if tables else None

    @rule(count=st.integers(1, 7))
    def begin(self, count: int) -> None:
        if self.kv.blocks_for(count) <= self.kv.num_free:
            self.tables.append(Table([], self.kv.acquire([], count)))
            self.compute()
            self.write(self.tables[-1], count)

    @rule(choice=st.integers(0, 99))
    def fork(self, choice: int) -> None:
        parent = self.pick(choice, on_host=False)
        if parent is None or not parent.tokens:
            return
        full, rest = divmod(len(parent.tokens), BLOCK)
        if self.kv.free_blocks_needed(parent.blocks[:full], len(parent.tokens)) <= self.kv.num_free:
            partial = parent.blocks[full] if rest else None
            child = self.kv.acquire(parent.blocks[:full], len(parent.tokens), partial)
            self.tables.append(Table([*parent.tokens], child))

    @rule(choice=st.integers(0, 99))
    def grow(self, choice: int) -> None:
        table = self.pick(choice, on_host=False)
        full = table is not None and len(table.tokens) == len(table.blocks) * BLOCK
        if table is not None and self.kv.num_free >= full:
            table.blocks += self.kv.allocate(int(full))
            self.compute()
            self.write(table, 1)

    @rule(choice=st.integers(0, 99))
    def swap_out(self, choice: int) -> None:
        table = self.pick(choice, on_host=False)
        if table is not None and (slots := self.kv.swap_out(table.blocks)) is not None:
            self.kv.release(table.blocks)
            table.blocks, table.slots = [], slots

    @rule(choice=st.integers(0, 99))
    def swap_in(self, choice: int) -> None:
        table = self.pick(choice, on_host=True)
        if table is not None and table.slots is not None and len(table.slots) <= self.kv.num_free:
            table.blocks = self.kv.acquire([], len(table.tokens))
            self.kv.swap_in(table.slots, table.blocks, 0)
            table.slots = None

    @precondition(lambda self: self.tables)
    @rule(choice=st.integers(0, 99))
    def end(self, choice: int) -> None:
        table = self.tables.pop(choice % len(self.tables))
        self.kv.release(table.blocks)
        self.kv.drop_swapped(table.slots or [])

    @rule()
    def compute(self) -> None:
        """A step begins: the moves are done, and everybody finds what was written."""
        moves = self.kv.take_moves()
        for block, slot in moves.copies_out:
            self.host[slot] = [*self.device[block]]
        read = [[*self.device[source]] for source, _ in moves.copies]
        for (_, block), content in zip(moves.copies, read, strict=True):
            self.device[block] = content
        for slot, block in moves.copies_in:
            self.device[block] = [*self.host[slot]]
        for table in self.tables:
            blocks, place = (table.blocks, self.device) if table.slots is None else (table.slots, self.host)
            there = [token for block in blocks for token in place[block][:BLOCK]]
            assert there[: len(table.tokens)] == table.tokens

    def write(self, table: Table, count: int) -> None:
        for _ in range(count):
            self.written += 1
            number, place = divmod(len(table.tokens), BLOCK)
            content = self.device[table.blocks[number]]
            self.device[table.blocks[number]] = [*content[:place], self.written]
            table.tokens.append(self.written)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.kv.check_invariants(
            [table.blocks for table in self.tables if table.blocks],
            [table.slots for table in self.tables if table.slots],
        )


TestMovingMachine = MovingMachine.TestCase
TestMovingMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
