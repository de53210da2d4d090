"""Dead letters by their offsets: neighbours are read in one go, and nothing far from them."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.errors import BrokerError
from headrace.broker.kafka.letters import NEAR, DeadLetters, runs
from headrace.broker.names import Names

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


async def test_a_letter_of_somebody_else_is_refused_with_a_sentence() -> None:
    """Its header is there, and has no value."""
    connection: Any = SimpleNamespace(names=Names("x"))
    letters = DeadLetters(connection)

    async def record(_: str) -> Any:
        return SimpleNamespace(headers=[("headrace-origin", None)], value=b"", offset=3, timestamp=0)

    letters._record = record  # type: ignore[method-assign, assignment]
    with pytest.raises(BrokerError, match="does not say which lane"):
        await letters.again("x.dlq/3")
