"""KV memory as a scheduler sees it: blocks for tokens, some of them known already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.gpu_engine.memory.block_pool import BlockPool
from headrace.gpu_engine.memory.moves import BlockMoves, PendingMoves
from headrace.gpu_engine.memory.prefix_cache import Digest, HashChain, PrefixCache, strong_digest
from headrace.gpu_engine.memory.swap_space import SwapSpace


class KVMemory:
    """A block pool and its prefix cache, kept in step: a block that is handed out anew is known no more.

    `salt` is part of every key, besides a request's own: model and weights. `num_host_slots`: blocks that
    fit into the host's swap space. What `acquire`, `swap_out` and `swap_in` ask to be copied is handed to
    the next step by `take_moves`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        salt: bytes = b"",
        digest: Digest = strong_digest,
        num_host_slots: int = 0,
    ) -> None:
        self.block_size = block_size
        self._caching = enable_prefix_caching
        self._salt = salt
        self._digest = digest
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache()
        self._moves = PendingMoves()
        self._host = SwapSpace(num_host_slots)
        self.query_tokens = self.hit_tokens = 0

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        return self._pool.capacity - self._pool.num_free

    @property
    def host_slots_used(self) -> int:
        return self._host.num_used

    @property
    def cache_evictions(self) -> int:
        """Blocks whose known content was lost, since they were needed for something else."""
        return self._cache.evictions

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def chain(self, salt: bytes = b"") -> HashChain:
        """A fresh hash chain for one request; chains of different salts never meet."""
        framed = len(self._salt).to_bytes(8, "little") + self._salt + salt
        return HashChain(self.block_size, framed, self._digest)

    def lookup(self, chain: HashChain, token_ids: Sequence[int]) -> list[int]:
        """Blocks of the longest known prefix of `token_ids`. At least one token is always left to
        compute, since its logits are what the request is after."""
        if not self._caching:
            return []
        return self._cache.lookup(chain.keys(token_ids, (len(token_ids) - 1) // self.block_size))

    def count_query(self, query_tokens: int, hit_tokens: int) -> None:
        """For statistics: a request came with `query_tokens`, of which the cache had `hit_tokens`."""
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    def free_blocks_needed(self, prefix: Sequence[int], num_tokens: int) -> int:
        """Free blocks that `acquire` would use: new ones, and those of the prefix that nobody holds now."""
        idle = sum(1 for block in prefix if self._pool.references(block) == 0)
        return self.blocks_for(num_tokens) - len(prefix) + idle

    def acquire(self, prefix: Sequence[int], num_tokens: int, partial: int | None = None) -> list[int]:
        """A block table for `num_tokens` tokens that begins with the known blocks `prefix`, which are full:
        nobody writes to them any more. `partial` is known too but may be written to: the block behind the
        prefix becomes a copy of it before the next step computes."""
        self._pool.share(prefix)  # first, lest the allocation takes them
        table = [*prefix, *self.allocate(self.blocks_for(num_tokens) - len(prefix))]
        if partial is not None:
            self._moves.copy(partial, table[len(prefix)])
        return table

    def allocate(self, count: int) -> list[int]:
        blocks = self._pool.allocate(count)
        for block in blocks:
            self._cache.evict(block)
            self._moves.forget(block)
        return blocks

    def swap_out(self, block_ids: Sequence[int]) -> list[int] | None:
        """Host slots that get copies of these blocks before they are overwritten: release them next. None
        where the host has too little room, or where a block is itself on its way from there."""
        if len(block_ids) > self._host.num_free or any(map(self._moves.is_awaited, block_ids)):
            return None
        slots = self._host.take(len(block_ids))
        for block, slot in zip(block_ids, slots, strict=True):
            self._moves.copy_out(block, slot)
        return slots

    def swap_in(self, slots: Sequence[int], block_ids: Sequence[int], first: int) -> None:
        """Fills blocks number `first` and following of a block table from the slots of the same numbers, and
        gives all slots back."""
        for slot, block in zip(slots[first:], block_ids[first:], strict=False):
            self._moves.copy_in(slot, block)
        self._host.give_back(slots)

    def drop_swapped(self, slots: Sequence[int]) -> None:
        """Gives host slots back whose content nobody wants any more."""
        self._host.give_back(slots)

    def take_moves(self) -> BlockMoves:
        """The copies that the step planned now is to do first."""
        self._host.settle()
        return self._moves.take()

    def release(self, block_ids: Sequence[int]) -> None:
        """Returns a block table; what the cache knows of it stays known until the blocks are needed."""
        self._pool.free(block_ids, self._cache.__contains__)

    def releasable(self, block_ids: Iterable[int], released: Mapping[int, int]) -> int:
        """How many of `block_ids` are free once each has been released as often as `released` says: those
        with no other holder."""
        return sum(1 for block in block_ids if self._pool.references(block) == released[block])

    def remember(
        self, chain: HashChain, token_ids: Sequence[int], block_ids: Sequence[int], first: int, end: int
    ) -> None:
        """Makes blocks number `first` to `end` - 1 of a block table known to others. The caller vouches
        that the KV of their tokens has been computed and is finite."""
        if self._caching and first < end:
            for key, block in zip(chain.keys(token_ids, end)[first:], block_ids[first:end], strict=True):
                self._cache.insert(key, block)

    def check_invariants(
        self, tables: Iterable[Sequence[int]], swapped: Iterable[Sequence[int]] = ()
    ) -> None:
        """The pool is consistent, and its reference counts are exactly those of `tables`, all block
        tables there are; so are the host's slots, of which the `swapped` hold some."""
        self._host.check_invariants([slot for slots in swapped for slot in slots])
        self._pool.check_invariants()
        self._cache.check_invariants()
        holders = [0] * self._pool.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a block table holds a block twice"
            for block in table:
                holders[block] += 1
        for block, count in enumerate(holders):
            assert count == self._pool.references(block), (
                f"block {block}: {count} tables hold it, {self._pool.references(block)} references counted"
            )
