"""Rows of a step, grouped by adapter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.gpu_engine.lora.rows import BARE, group_rows

CHUNKS = st.lists(st.tuples(st.integers(BARE, 5), st.integers(1, 9)), min_size=1, max_size=12)


@given(CHUNKS)
def test_each_row_with_an_adapter_is_in_its_group_once_and_in_order(chunks: list[tuple[int, int]]) -> None:
    adapters, lengths = [list(column) for column in zip(*chunks, strict=True)]
    expected = [adapter for adapter, length in chunks for _ in range(length)]
    rows = group_rows(adapters, lengths)
    if rows is None:
        assert set(adapters) == {BARE}
        return
    assert rows.of_row.tolist() == expected
    assert rows.order.tolist() == sorted(
        (row for row, adapter in enumerate(expected) if adapter != BARE), key=lambda row: (expected[row], row)
    )
    assert [number for number, _ in rows.groups] == sorted(set(adapters) - {BARE})
    for number, own in rows.groups:
        assert own.tolist() == [row for row, adapter in enumerate(expected) if adapter == number]
    assert rows.of_row.dtype == rows.order.dtype == "int32", "what the kernels read"


def test_a_step_without_adapters_has_no_rows_to_group() -> None:
    assert group_rows([BARE, BARE], [3, 1]) is None
