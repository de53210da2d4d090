"""The block pool: who gets which block, and in what order content is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.gpu_engine.memory.block_pool import NULL_BLOCK, BlockPool


def nothing_cached(block: int) -> bool:
    return False


def all_cached(block: int) -> bool:
    return True


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert pool.capacity == pool.num_free == 4
    assert NULL_BLOCK not in pool.allocate(4)


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one more"):
        BlockPool(1)


def test_more_blocks_than_are_free_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="5 blocks wanted, 4 free"):
        BlockPool(5).allocate(5)


def test_a_block_freed_twice_is_our_own_mistake() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks, nothing_cached)
    with pytest.raises(AssertionError, match="does not hold it"):
        pool.free(blocks, nothing_cached)


def test_empty_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(5)
    cached, empty = pool.allocate(2), pool.allocate(2)
    pool.free(cached, all_cached)
    pool.free(empty, nothing_cached)
    assert sorted(pool.allocate(2)) == sorted(empty)


def test_cached_blocks_are_lost_longest_unused_first_and_tail_before_head() -> None:
    pool = BlockPool(5)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.free(old, all_cached)
    pool.free(new, all_cached)
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_a_cached_block_that_is_used_again_is_lost_last() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.free(first, all_cached)
    pool.free(second, all_cached)
    pool.share(first)
    pool.free(first, all_cached)
    taken = pool.allocate(4)
    assert taken.index(second[0]) < taken.index(first[0])


def test_a_block_in_use_is_never_taken_while_anybody_holds_it() -> None:
    pool = BlockPool(3)
    block = pool.allocate(1)
    pool.share(block)
    pool.free(block, all_cached)
    assert pool.references(block[0]) == 1
    assert block[0] not in pool.allocate(pool.num_free)


class PoolMachine(RuleBasedStateMachine):
    """Random holders against a plain count of references."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.tables: list[list[int]] = []
        self.cached: set[int] = set()

    @rule(count=st.integers(1, 4), keep=st.booleans())
    def allocate(self, count: int, keep: bool) -> None:
        if count <= self.pool.num_free:
            table = self.pool.allocate(count)
            held = {block for other in self.tables for block in other}
            assert not held & set(table)
            assert NULL_BLOCK not in table
            self.cached.difference_update(table)
            self.cached.update(table if keep else ())
            self.tables.append(table)

    @rule(block=st.integers(1, 8))
    def share(self, block: int) -> None:
        self.pool.share([block])
        self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(choice=st.integers(0, 99))
    def free(self, choice: int) -> None:
        self.pool.free(self.tables.pop(choice % len(self.tables)), self.cached.__contains__)

    @invariant()
    def every_reference_is_counted(self) -> None:
        self.pool.check_invariants()
        held = [block for table in self.tables for block in table]
        assert all(self.pool.references(block) == held.count(block) for block in range(9))
        assert self.pool.num_free == 8 - len(set(held))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
