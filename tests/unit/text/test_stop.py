"""Nothing of a stop string is shown, nothing else is lost, and cutting the text otherwise changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.text.stop import StopMatcher

# Two letters only: stop strings overlap themselves and one another all the time.
LETTERS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PROPERTY = settings(deadline=None, max_examples=300)


def expected(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The rule, naively: the first end wins, then the longest."""
    for end in range(1, len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


@PROPERTY
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_the_earliest_end_wins_however_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    matcher = StopMatcher(stops)
    shown = [matcher.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert ("".join([*shown, matcher.flush()]), matcher.stopped) == expected(text, stops)


@PROPERTY
@given(text=LETTERS, stops=STOPS)
def test_what_is_held_back_is_the_longest_beginning_of_any_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.feed(text)
    if matcher.stopped:
        return
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    assert len(text) - len(shown) == max(begun, default=0)


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopMatcher([]).feed("any text") == "any text"


def test_a_stop_string_cut_into_single_characters_never_shows() -> None:
    matcher = StopMatcher(["</s>"])
    assert [matcher.feed(c) for c in "ab</s>cd"] == ["a", "b", "", "", "", "", "", ""]
    assert matcher.stopped
    assert matcher.flush() == ""


def test_a_beginning_that_comes_to_nothing_is_shown_after_all() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.feed("x\n\nUs"), matcher.feed("ed"), matcher.flush()] == ["x", "\n\nUsed", ""]


def test_of_two_stop_strings_that_end_together_all_of_the_longer_is_cut() -> None:
    matcher = StopMatcher(["b", "ab"])
    assert matcher.feed("xab") == "x"


def test_a_short_stop_string_inside_a_long_one_ends_the_text_first() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert [matcher.feed("xab"), matcher.feed("cd")] == ["x", "a"]


def test_a_very_long_stop_string_costs_no_more_than_the_text_is_long() -> None:
    stop = "ab" * 50_000 + "c"
    matcher = StopMatcher([stop])
    for _ in range(20_000):
        assert matcher.feed("ab") == ""
    assert matcher.flush() == "ab" * 20_000
