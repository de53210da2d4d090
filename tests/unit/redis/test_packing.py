from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.redis_streams.packing import pack, pack_one

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.binary(max_size=40) | TEXT | st.integers()


def test_a_command_is_an_array_of_bulk_strings() -> None:
    packed = b"*3\r\n$3\r\nSET\r\n$3\r\n\xe2\x82\xac\r\n$2\r\n10\r\n"
    assert pack_one(("SET", "€", 10)) == packed
    assert pack([("SET", "€", 10), ("SET", b"\xe2\x82\xac", "10")]) == packed * 2


@settings(deadline=None)
@given(st.lists(st.lists(VALUES, min_size=1, max_size=5), max_size=5))
def test_both_ways_of_packing_give_the_same_bytes(commands: list[list[bytes | str | int]]) -> None:
    assert pack(commands) == b"".join(map(pack_one, commands))
