"""The ring of recent events: complete from its floor on, bounded, and each reader finds its own."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.tails import Entry, Ring, Tail
from headrace.broker.message import Lane

MOST = 2_000
KEYS = (b"a", b"b", None)


def entry(offset: int, key: bytes | None, size: int = 10) -> Entry:
    return Entry(offset, 1_000 + offset, key, b"x" * size)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 900), st.integers(1, 3)), max_size=40),
    st.integers(0, 120),
)
def test_a_ring_gives_all_that_stands_from_its_floor_on_and_no_more(
    puts: list[tuple[bytes | None, int, int]], start: int
) -> None:
    ring, all_entries, offset = Ring(5, 0, MOST), [], 5
    for key, size, step in puts:
        all_entries.append(entry(offset, key, size))
        ring.put(all_entries[-1])
        offset += step
    start = max(start, ring.floor)
    for key in (b"a", b"b"):
        expected = [e for e in all_entries if e.offset >= start and e.key in (key, None)]
        assert ring.take(key, start) == expected
        assert ring.holds(key) == any(e.key == key and e.offset >= ring.floor for e in all_entries)
    below = [e for e in all_entries if e.key is None and e.offset < ring.floor]
    assert ring.fence == (below[-1] if below else None)
    kept = [e for e in all_entries if e.offset >= ring.floor]
    assert len(kept) <= 1 or sum(e.size for e in kept) <= MOST
    assert ring.next == (all_entries[-1].offset + 1 if all_entries else 5)


async def test_a_listener_hears_of_its_own_entries_and_of_fences_and_knows_the_first() -> None:
    tail = Tail(LogPlace(Lane.BATCH, "", 0), Ring(0, 0, MOST))
    mine, other = tail.listen(b"a"), tail.listen(b"b")
    tail.put(entry(0, b"a"))
    tail.put(entry(1, b"a"))
    assert (mine.first, mine.ready.is_set(), other.ready.is_set()) == (0, True, False)
    mine.clear()
    tail.put(entry(2, None))
    assert (mine.first, other.first) == (2, 2)
    tail.unlisten(other)
    other.clear()
    tail.put(entry(3, None))
    assert not other.ready.is_set()
    await asyncio.wait_for(mine.ready.wait(), 1)
