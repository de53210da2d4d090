"""Flow: what is fetched ahead stays bounded, and the interactive lane is not held up by others."""

from __future__ import annotations

from headrace.broker.kafka.flow import Fill, paused_partitions

MIB = 1 << 20


def test_a_partition_that_has_enough_is_paused_and_resumed_when_half_of_it_is_gone() -> None:
    assert paused_partitions({"a": Fill(255, 0)}, []) == set()
    assert paused_partitions({"a": Fill(256, 0)}, []) == {"a"}
    assert paused_partitions({"a": Fill(128, 0)}, ["a"]) == {"a"}
    assert paused_partitions({"a": Fill(127, 0)}, ["a"]) == set()


def test_large_records_count_by_their_bytes() -> None:
    assert paused_partitions({"a": Fill(3, 4 * MIB)}, []) == {"a"}
    assert paused_partitions({"a": Fill(1, 2 * MIB - 1)}, ["a"]) == set()


def test_when_all_hold_much_together_only_empty_ones_and_the_interactive_lane_go_on() -> None:
    full = {f"p{i}": Fill(10, 3 * MIB) for i in range(11)}
    others = {"empty": Fill(0, 0), "interactive": Fill(10, MIB, interactive=True)}
    assert paused_partitions({**full, **others}, []) == set(full)


def test_a_partition_that_was_given_up_is_not_paused_any_more() -> None:
    assert paused_partitions({}, ["a"]) == set()
