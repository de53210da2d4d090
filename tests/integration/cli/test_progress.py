"""What a run shows while it goes on, and at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli.progress import Pace, RunDisplay, duration, summary_line
from headrace.producer.file_run.options import Progress, Summary


def progress(done: int, failed: int = 0, tokens: int = 0, resumed: int = 0) -> Progress:
    return Progress(
        total=100,
        done=done,
        failed=failed,
        resumed=resumed,
        prompt_tokens=0,
        completion_tokens=tokens,
        elapsed_s=0,
    )


def test_speed_and_time_left_are_those_of_this_start_alone() -> None:
    now = 100.0
    pace = Pace(lambda: now)
    assert pace.seconds_left(progress(40, tokens=4000, resumed=40)) is None
    now = 110.0
    later = progress(50, failed=10, tokens=5000, resumed=40)
    assert pace.tokens_per_s(later) == pytest.approx(100)
    assert pace.seconds_left(later) == pytest.approx(20)


def test_without_a_terminal_there_are_plain_lines_and_not_too_many() -> None:
    screen = io.StringIO()
    with RunDisplay(Console(file=screen)) as display:
        for done in range(100):
            display.update(progress(done, failed=1))
    [line] = screen.getvalue().splitlines()
    assert line.startswith("1/100  1 failed")


def test_on_a_terminal_there_is_a_bar_with_the_figures() -> None:
    screen = io.StringIO()
    with RunDisplay(Console(file=screen, force_terminal=True, width=100)) as display:
        display.update(progress(0))
        display.update(progress(60, failed=3))
    assert "63/100" in screen.getvalue()
    assert "3 failed" in screen.getvalue()


def test_the_summary_counts_what_earlier_starts_did_apart() -> None:
    summary = Summary(
        total=10,
        done=8,
        failed=2,
        resumed=4,
        prompt_tokens=1234,
        completion_tokens=99,
        elapsed_s=3.0,
        run_id="r",
    )
    assert summary_line(summary) == (
        "4 found from before, 8 answered, 2 failed, 1,234 tokens in, 99 tokens out, 2.0 requests/s, 3.0 s"
    )


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (61, "1:01"), (3723.4, "1:02:03")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
