"""What a trace records, and the pictures drawn from it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.app import build_app
from headrace.cli.errors import Mistake
from headrace.cli.trace import trace as trace_command
from headrace.gpu_engine.picture.shapes import Picture, Rect, Text
from headrace.gpu_engine.picture.svg import to_svg
from headrace.gpu_engine.picture.timeline import MOST_ROWS, PREEMPTED, draw_timeline
from headrace.gpu_engine.trace import StepRecord, Trace, TraceError, TraceFile, TraceHeader, read_trace
from tests.support.batching_pictures import PICTURES, POLICIES, draw
from tests.unit.engine.fakes import Bench, expected_tokens, request

HEADER = TraceHeader(blocks=10, block_size=4, max_batch_size=2, max_batch_tokens=16, policy="continuous")


def recorded(path: Path) -> Trace:
    """Two requests, the second of which is preempted for want of memory or to the host."""
    bench = Bench(
        num_blocks=10,
        trace_path=str(path),
        num_host_slots=8,
        preempt_hook=lambda step, running: running[-1:] if step == 4 else (),
    )
    bench.add(request("first", 9, 6))
    bench.add(request("second", 6, 4))
    bench.run()
    del bench
    return read_trace(path)


# ------------------------------------------------------------------------------ the file


def test_each_step_is_a_line_with_who_ran_and_what_was_held(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace.jsonl")
    assert trace.header == TraceHeader(
        blocks=9, block_size=4, max_batch_size=8, max_batch_tokens=16, policy="continuous"
    )
    assert [record.step for record in trace.steps] == list(range(1, len(trace.steps) + 1))
    first, second = trace.steps[:2]
    assert (first.ran, first.used, first.waiting) == ({"first": 9, "second": 6}, 5, 0)
    assert (second.ran, second.preempted) == ({"first": 1, "second": 1}, [])
    assert [record.step for record in trace.steps if record.preempted] == [4]
    assert trace.steps[3].preempted == ["second"]
    assert sum(record.swapped_out for record in trace.steps) == 2
    assert 0 < first.ms <= first.at_ms <= second.at_ms


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench()
    bench.add(request("r", 4, 4))
    bench.run()
    assert os.listdir(tmp_path) == []


def test_lines_are_written_together_and_none_is_lost_when_the_trace_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(str(path), HEADER)
    lines = []
    for step, now in enumerate([0.0, 0.01, 0.02, 0.06, 0.07]):
        file.add(StepRecord(step=step, at_ms=0, ms=0, ran={}, used=0), now)
        lines.append(len(read_trace(path).steps))
    assert lines == [1, 1, 1, 4, 4]
    file.close()
    assert len(read_trace(path).steps) == 5


def test_engines_of_several_processes_write_files_of_their_own(tmp_path: Path) -> None:
    TraceFile(str(tmp_path / "trace-{pid}.jsonl"), HEADER).close()
    assert os.listdir(tmp_path) == [f"trace-{os.getpid()}.jsonl"]


def test_a_line_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    whole = recorded(path)
    path.write_bytes(path.read_bytes()[:-7])
    assert read_trace(path).steps == whole.steps[:-1]


def test_a_file_that_is_no_trace_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    for content in ("", "hello\n", '{"custom_id": "a"}\n'):
        path.write_text(content)
        with pytest.raises(TraceError, match="no trace of an engine"):
            read_trace(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "missing")


def test_a_trace_that_cannot_be_written_is_told_so() -> None:
    with pytest.raises(TraceError, match="name another file"):
        Bench(trace_path="/nowhere/at/all.jsonl")


# ------------------------------------------------------------------------------ the picture


def bars(picture: Picture, name: str) -> list[str]:
    titles = [shape.title for shape in picture.shapes if isinstance(shape, Rect)]
    return [title.removeprefix(f"{name}: ") for title in titles if title.startswith(f"{name}:")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
def test_a_disk_that_is_full_ends_the_trace_and_not_the_engine() -> None:
    bench = Bench(trace_path="/dev/full")
    one = request("r", 4, 8)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)


def test_every_request_has_a_bar_for_each_step_in_which_it_ran(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace.jsonl")
    picture = draw_timeline(trace, "step")
    assert bars(picture, "first") == ["prompt, 9 tokens", *["answer, 1 tokens"] * 5]
    assert sum(getattr(shape, "stroke", "") == PREEMPTED for shape in picture.shapes) == 1


def test_many_steps_are_joined_and_many_requests_cut() -> None:
    steps = [
        StepRecord(step=number, at_ms=number, ms=1, ran={"long": 1, f"r{number}": 5}, used=number % 7)
        for number in range(1, 3000)
    ]
    picture = draw_timeline(Trace(HEADER, steps), "time")
    assert bars(picture, "long") == ["answer, 2999 tokens"]
    assert sum(isinstance(shape, Rect) for shape in picture.shapes) < 3 * MOST_ROWS + 2000
    assert any(
        isinstance(shape, Text) and f"the first {MOST_ROWS} shown" in shape.text for shape in picture.shapes
    )


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=20), st.integers(1, 50), max_size=5),
            st.integers(0, 10),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    ),
    by_time=st.booleans(),
)
def test_any_trace_makes_a_picture_that_is_well_formed_and_within_its_frame(
    steps: list[tuple[dict[str, int], int, bool]], by_time: bool
) -> None:
    records = [
        StepRecord(
            step=number,
            at_ms=2.0 * number,
            ms=1,
            ran=ran,
            used=used,
            preempted=[*ran][:1] if preempted else [],
        )
        for number, (ran, used, preempted) in enumerate(steps)
    ]
    picture = draw_timeline(Trace(HEADER, records), "time" if by_time else "step")
    root = ET.fromstring(to_svg(picture))
    assert root.tag.endswith("svg")
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            assert shape.width >= 0
            assert shape.height >= 0
            assert shape.x >= 0
            assert shape.x + shape.width <= picture.width + 1e-6
            assert shape.y + shape.height <= picture.height + 1e-6


@pytest.mark.parametrize("policy", POLICIES)
def test_the_pictures_in_the_docs_are_what_the_engine_does(policy: str) -> None:
    """If not: look whether the engine is right, then `python -m tests.support.batching_pictures`."""
    assert (PICTURES / f"batching-{policy}.svg").read_text(encoding="utf-8") == draw(policy)


# ------------------------------------------------------------------------------ the command


def test_the_command_draws_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    recorded(tmp_path / "trace.jsonl")
    out = tmp_path / "picture.svg"
    words = [
        "trace",
        str(tmp_path / "trace.jsonl"),
        "-o",
        str(out),
        "--by",
        "step",
        "--first",
        "2",
        "--last",
        "4",
    ]
    shown = CliRunner().invoke(build_app("trace"), words).output
    assert shown == f"{out}: 3 steps\n"
    assert "in 3 steps" in out.read_text()


def test_wrong_files_and_steps_are_mistakes(tmp_path: Path) -> None:
    recorded(tmp_path / "trace.jsonl")
    with pytest.raises(Mistake, match=r"ends in \.svg or \.png"):
        trace_command(tmp_path / "trace.jsonl", tmp_path / "picture.pdf")
    with pytest.raises(Mistake, match="none of those asked for"):
        trace_command(tmp_path / "trace.jsonl", tmp_path / "picture.svg", first=100)


def test_png_is_written_where_matplotlib_is_installed_and_else_told_how_to_have_it(tmp_path: Path) -> None:
    recorded(tmp_path / "trace.jsonl")
    out = tmp_path / "picture.png"
    if importlib.util.find_spec("matplotlib"):
        trace_command(tmp_path / "trace.jsonl", out)
        assert out.read_bytes().startswith(b"\x89PNG")
    else:
        with pytest.raises(Mistake, match=r"headrace\[plots\]"):
            trace_command(tmp_path / "trace.jsonl", out)
