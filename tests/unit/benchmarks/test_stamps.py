from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.queue_bench.stamps import made_at, stamp
from headrace.gpu_engine.text.sim import SimTokenizer

TIMES = st.integers(0, 1 << 53)  # three months: exact as seconds, too


@given(TIMES, st.integers(0, 60 * 10**9))
def test_a_stamp_says_when_it_was_made_also_over_the_wrap(made_ns: int, age_ns: int) -> None:
    now_ns = made_ns + age_ns
    assert now_ns / 1e9 - made_at(stamp(made_ns), now_ns) == pytest.approx(age_ns / 1e9, abs=1e-5)


@given(TIMES)
def test_a_stamp_is_a_token_id_without_text(made_ns: int) -> None:
    token = stamp(made_ns)
    assert 0 <= token < 1 << 32
    assert SimTokenizer().decode([token]) == ""
