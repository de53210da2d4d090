"""Commits: nothing finished is lost, nothing unfinished is taken for finished, and the limit is kept."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.kafka.commits import (
    LONGEST_TRANSACTIONAL_ID,
    MOST_METADATA,
    WINDOW,
    Committed,
    Progress,
    decode_metadata,
    encode_metadata,
)

PROPERTY = settings(deadline=None, max_examples=150)
offsets = st.integers(0, 10**15)


@st.composite
def commits(draw: st.DrawFn) -> Committed:
    base = draw(offsets)
    beyond = draw(st.frozensets(st.integers(1, WINDOW - 1), max_size=300))
    name = draw(st.text("abcXYZ019._-", max_size=LONGEST_TRANSACTIONAL_ID))
    return Committed(base, frozenset(base + i for i in beyond), draw(offsets), draw(offsets), name)


@PROPERTY
@given(commits())
def test_a_commit_is_read_back_as_it_was_written(committed: Committed) -> None:
    assert decode_metadata(committed.base, encode_metadata(committed)) == committed


@PROPERTY
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_no_window_however_full_exceeds_the_limit_of_metadata(seed: int, share: float) -> None:
    chosen = random.Random(seed)
    beyond = frozenset(10**15 + i for i in range(WINDOW) if chosen.random() < share)
    committed = Committed(10**15, beyond, 10**15, 10**15, "x" * LONGEST_TRANSACTIONAL_ID)
    metadata = encode_metadata(committed)
    assert len(metadata.encode()) <= MOST_METADATA
    assert decode_metadata(committed.base, metadata).beyond == beyond


@PROPERTY
@given(commits(), st.data())
def test_metadata_of_another_base_or_of_somebody_else_is_ignored(
    committed: Committed, data: st.DataObject
) -> None:
    metadata = encode_metadata(committed)
    other = data.draw(offsets.filter(lambda offset: offset != committed.base))
    assert decode_metadata(other, metadata) == Committed(other)
    cut = metadata[: data.draw(st.integers(0, len(metadata) - 1))]
    read = decode_metadata(committed.base, cut)
    assert read.beyond <= committed.beyond
    foreign = data.draw(st.text(max_size=60))
    assert decode_metadata(other, foreign) == Committed(other)


@pytest.mark.parametrize(
    "metadata",
    [None, "", "h1", "h2;5;1;1;;p", "h1;5;x;1;;p", "h1;5;1;1;;q", "h1;5;1;1;;p*", "h1;5;1;1;;zAA=="],
)
def test_metadata_that_does_not_decode_leaves_the_offset(metadata: str | None) -> None:
    assert decode_metadata(5, metadata) == Committed(5)


def test_a_bomb_of_bits_is_refused() -> None:
    import base64
    import zlib

    bomb = base64.urlsafe_b64encode(zlib.compress(b"\xff" * (1 << 22), 9)[2:-4]).decode()
    assert decode_metadata(5, f"h1;5;1;1;;z{bomb}") == Committed(5)


@PROPERTY
@given(st.lists(st.integers(1, 4), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_through_owners_that_die_nothing_finished_comes_again_and_nothing_else_is_skipped(
    gaps: list[int], chosen: random.Random
) -> None:
    """Owners take some records, finish some of them in any order, and die; offsets have holes."""
    records = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    committed, done = Committed(records[0]), set[int]()
    for _ in range(4):
        progress = Progress(committed)
        held = []
        for offset in [r for r in records if r >= committed.base][: chosen.randrange(len(records) + 1)]:
            if progress.see(offset):
                assert offset not in done, "what was finished comes again"
                held.append(offset)
            else:
                assert offset in done, "what is unfinished was skipped"
        chosen.shuffle(held)
        for offset in held[: chosen.randrange(len(held) + 1)]:
            step = progress.committed(also=[offset])
            progress.finish(offset)
            done.add(offset)
            assert step == progress.committed()
            committed = decode_metadata(step.base, encode_metadata(step))
        for record in records:
            assert committed.finished(record) == (record in done)
            assert progress.finished(record) == (record in done)


def test_holes_do_not_hold_the_base_back() -> None:
    progress = Progress(Committed(0))
    for offset in (0, 5, 9):
        assert progress.see(offset)
    assert progress.committed(also=[0, 5]).base == 9
    for offset in (0, 5, 9):
        progress.finish(offset)
    assert (progress.base, progress.committed()) == (10, Committed(10))


def test_an_unfinished_record_lets_others_go_ahead_of_it_up_to_the_window() -> None:
    progress = Progress(Committed(0))
    for offset in range(WINDOW):
        assert progress.room
        progress.see(offset)
    assert not progress.room
    for offset in range(1, WINDOW):
        progress.finish(offset)
    assert not progress.room
    committed = progress.committed()
    assert len(encode_metadata(committed)) < 200, "all but one finished: that packs well"
    assert committed.unfinished(WINDOW + 3) == 4
    progress.finish(0)
    assert progress.room
