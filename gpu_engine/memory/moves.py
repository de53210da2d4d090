"""Copies of whole KV blocks that a step does before it computes, gathered while the step is planned.

They are asked for one after another and done in three batches:

    copies_out   block → host slot     first, before anything is overwritten
    copies       block → block         all read before any is written
    copies_in    host slot → block     last

So each is recorded by where its content stands before the step: a copy of a block that is itself about to be
copied reads from that one's source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class BlockMoves(NamedTuple):
    """The copies of one step, as pairs (from, to). No place is written twice."""

    copies: Sequence[tuple[int, int]] = ()
    copies_out: Sequence[tuple[int, int]] = ()
    copies_in: Sequence[tuple[int, int]] = ()


class PendingMoves:
    """The copies asked for since the last plan was drawn."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}  # of a block: the block whose content it is to get
        self._slots: dict[int, int] = {}  # of a block: the host slot whose content it is to get
        self._out: dict[int, int] = {}  # of a host slot: the block whose content it is to get

    def is_awaited(self, block: int) -> bool:
        """Whether the content of `block` comes from the host in this step, so that it cannot go there."""
        return block in self._slots

    def copy(self, source: int, destination: int) -> None:
        self.forget(destination)
        if source in self._slots:
            self._slots[destination] = self._slots[source]
        else:
            self._sources[destination] = self._sources.get(source, source)

    def copy_out(self, block: int, slot: int) -> None:
        assert not self.is_awaited(block), f"block {block} is not here yet"
        self._out[slot] = self._sources.get(block, block)

    def copy_in(self, slot: int, block: int) -> None:
        self.forget(block)
        self._slots[block] = slot

    def forget(self, block: int) -> None:
        """`block` was handed out anew: what it was to get is wanted no more."""
        self._sources.pop(block, None)
        self._slots.pop(block, None)

    def take(self) -> BlockMoves:
        moves = BlockMoves(
            copies=[(source, block) for block, source in self._sources.items()],
            copies_out=[(block, slot) for slot, block in self._out.items()],
            copies_in=[(slot, block) for block, slot in self._slots.items()],
        )
        self._sources, self._slots, self._out = {}, {}, {}
        return moves
