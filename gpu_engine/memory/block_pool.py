"""The pool of KV blocks: who holds which, and in what order free ones are used again.

Free blocks stand in one ordered list. Blocks with nothing worth keeping go to its front, blocks that
the prefix cache knows to its back, so that the cache loses what was used longest ago first (LRU) and
loses nothing while an empty block is left. A holder returns its blocks tail first: of one prefix the
tail is lost before the head, without which the tail is of no use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

NULL_BLOCK = 0


class BlockPool:
    """`num_blocks` blocks with reference counts; block 0 is the null block, which padding may point at
    and nobody ever gets. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and at least one more, not {num_blocks} blocks")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks))

    @property
    def capacity(self) -> int:
        """Blocks that requests may hold."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, those with cached content among them."""
        return len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks, at most `num_free`; their former content is lost."""
        assert 0 <= count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a holder to blocks whose content is known, held by others or free."""
        for block in blocks:
            assert block != NULL_BLOCK, "the null block is never handed out"
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int], is_cached: Callable[[int], bool]) -> None:
        """Returns the blocks of one holder, given from head to tail. Those that were its alone become
        free; `is_cached` tells which of them still have content to keep."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is freed by somebody who does not hold it"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if not is_cached(block):
                    self._free.move_to_end(block, last=False)

    def check_invariants(self) -> None:
        """Free and held blocks together are all blocks but the null block, and no block is both."""
        assert self._references[NULL_BLOCK] == 0, "somebody holds the null block"
        assert NULL_BLOCK not in self._free, "the null block is among the free ones"
        for block in range(NULL_BLOCK + 1, self.num_blocks):
            is_free = block in self._free
            assert is_free == (self._references[block] == 0), (
                f"block {block} has {self._references[block]} holders and is {'' if is_free else 'not '}free"
            )
        assert all(0 < block < self.num_blocks for block in self._free), "a free block is out of range"
