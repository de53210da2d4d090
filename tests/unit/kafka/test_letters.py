"""Dead letters by their offsets: neighbours are read in one go, and nothing far from them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.kafka.letters import NEAR, runs

offsets = st.sets(st.integers(0, 2_000), max_size=40).map(sorted)


@given(offsets)
@settings(deadline=None)
def test_runs_hold_all_offsets_and_little_else(wanted: list[int]) -> None:
    spans = runs(wanted)
    assert all(any(low <= offset < high for low, high in spans) for offset in wanted)
    assert {low for low, _ in spans} <= set(wanted)
    assert {high - 1 for _, high in spans} <= set(wanted)
    assert all(later - high > NEAR for (_, high), (later, _) in pairwise(spans))
    assert sum(high - low for low, high in spans) <= (NEAR + 1) * len(wanted)
