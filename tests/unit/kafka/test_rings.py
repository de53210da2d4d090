"""The ring of recent events: complete from its floor on, bounded, and each reader finds its own."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.events import Event, Fence, Finished
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Entry, Ring
from headrace.broker.kafka.tails import Tail
from headrace.broker.message import Lane
from headrace.broker.wire import encode_event

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
    ring, all_entries, offset = Ring(5, MOST), [], 5
    for key, size, step in puts:
        all_entries.append(entry(offset, key, size))
        ring.put(all_entries[-1])
        offset += step
    start = max(start, ring.floor)
    for key in (b"a", b"b"):
        expected = [e for e in all_entries if e.offset >= start and e.key in (key, None)]
        assert ring.take(key, start) == expected
        assert ring.holds(key) == any(e.key == key and e.offset >= ring.floor for e in all_entries)
    kept = [e for e in all_entries if e.offset >= ring.floor]
    assert len(kept) <= 1 or sum(e.size for e in kept) <= MOST
    assert ring.next == (all_entries[-1].offset + 1 if all_entries else 5)


FENCES = st.integers(0, 4).map(Fence)


@settings(deadline=None, max_examples=150)
@given(st.lists(FENCES | st.just(Finished(9, "stop")), max_size=20), st.booleans())
def test_a_ring_knows_the_fence_in_force_below_it(said: list[Event], rubbish: bool) -> None:
    """Not the last one: who was overtaken while it was frozen repeats its own when it wakes."""
    ring = Ring(0, 1, Entry(-1, 0, None, encode_event(Fence(1))))
    for offset, event in enumerate(said):
        ring.put(Entry(offset, 0, None, encode_event(event)))
    ring.put(Entry(len(said), 0, None, b"\xff" if rubbish else encode_event(Fence(3))))
    ring.put(entry(len(said) + 1, b"a"))
    epochs = [1, *(event.epoch for event in said if isinstance(event, Fence)), *([] if rubbish else [3])]
    assert ring.fence is not None
    assert ring.fence.value == encode_event(Fence(max(epochs)))


async def test_a_listener_hears_of_its_own_entries_and_of_fences_and_knows_the_first() -> None:
    tail = Tail(LogPlace(Lane.BATCH, "", 0), Ring(0, MOST))
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
