"""A trace as a picture: a row for each request, and below how full the KV memory was.

request   ▓▓░░░░░░░│░░░░     ▓ prompt  ░ answer  │ preempted
blocks    ▁▂▃▃▄▄▅▅▆▆▅▅▃
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from headrace.gpu_engine.picture.shapes import Line, Picture, Rect, Shape, Text
from headrace.gpu_engine.trace import StepRecord, Trace

Axis: TypeAlias = Literal["step", "time"]

PROMPT, ANSWER, BLOCKS, PREEMPTED = "#3b5b92", "#9db8d9", "#8fb58a", "#c0392b"
INK, FAINT, PAPER = "#222222", "#dddddd", "#ffffff"
# Pixels.
LEFT, RIGHT, TOP, GAP = 120.0, 20.0, 48.0, 26.0
PLOT, LEAST_WIDTH, MEMORY = 860.0, 420.0, 70.0
TALLEST_ROW, LOWEST_ROW, TALLEST_ROWS, LABELLED = 18.0, 2.0, 600.0, 8.0
WIDEST_STEP, NARROW_STEP, NARROWEST = 60.0, 6.0, 0.5

MOST_ROWS: Final = 400
LONGEST_LABEL: Final = 16
TICKS: Final = 10


@dataclass(frozen=True, slots=True)
class Span:
    """Steps in a row in which a request did the same; pixels, and tokens of all of them."""

    start: float
    end: float
    is_prompt: bool
    tokens: int


class Scale:
    """Where a step begins and ends, in pixels."""

    def __init__(self, steps: Sequence[StepRecord], axis: Axis) -> None:
        self.axis = axis
        self._steps = steps
        begins = [record.at_ms - record.ms for record in steps] if axis == "time" else range(len(steps))
        ends = [record.at_ms for record in steps] if axis == "time" else range(1, len(steps) + 1)
        self.length = max(float(ends[-1]) - float(begins[0]), 1e-9)
        widest = WIDEST_STEP * len(steps) if axis == "step" else PLOT
        self.unit = min(PLOT, widest) / self.length
        self.starts = [LEFT + (begin - begins[0]) * self.unit for begin in begins]
        self.ends = [LEFT + (end - begins[0]) * self.unit for end in ends]

    @property
    def is_fine(self) -> bool:
        """Whether steps are too narrow to be seen one by one."""
        return self.width < NARROW_STEP * len(self._steps)

    @property
    def width(self) -> float:
        return self.length * self.unit

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Places and what stands there: numbers of steps in their middles, or seconds."""
        if self.axis == "time":
            every_ms = _round_up(self.length / TICKS)
            for number in range(int(self.length / every_ms) + 1):
                yield LEFT + number * every_ms * self.unit, f"{number * every_ms / 1000:g} s"
            return
        every = max(1, int(_round_up(len(self._steps) / (2 * TICKS))))
        for place in range(0, len(self._steps), every):
            yield (self.starts[place] + self.ends[place]) / 2, str(self._steps[place].step)


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(digit for digit in (1, 2, 5, 10) if digit * power >= value)


@dataclass(slots=True)
class Life:
    """When one request ran: numbers of steps and tokens in them; and in which it lost its place before."""

    ran: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)


def draw_timeline(trace: Trace, axis: Axis = "step") -> Picture:
    """The picture of a trace of at least one step; `axis`: what runs from left to right. Of more than
    MOST_ROWS requests the first ones are shown."""
    lives = _read_lives(trace.steps)
    shown = list(lives)[:MOST_ROWS]
    row = max(LOWEST_ROW, min(TALLEST_ROW, TALLEST_ROWS / max(1, len(shown))))
    scale = Scale(trace.steps, axis)
    floor = TOP + row * len(shown)
    shapes: list[Shape] = [*_heading(trace, len(lives), len(shown)), *_legend(lives)]
    for place, name in enumerate(shown):
        shapes += _row(name, lives[name], scale, TOP + place * row, row)
    shapes += _memory(trace, scale, floor + GAP)
    shapes += _ticks(scale, floor + GAP + MEMORY)
    return Picture(LEFT + max(scale.width, LEAST_WIDTH) + RIGHT, floor + GAP + MEMORY + 36.0, shapes)


def _read_lives(steps: Sequence[StepRecord]) -> dict[str, Life]:
    """By request, in the order in which they first ran."""
    lives: dict[str, Life] = {}
    for place, record in enumerate(steps):
        for name in record.preempted:
            lives.setdefault(name, Life()).preempted.append(place)
        for name, tokens in record.ran.items():
            lives.setdefault(name, Life()).ran.append((place, tokens))
    return lives


def _heading(trace: Trace, num_requests: int, num_shown: int) -> Iterator[Shape]:
    header = trace.header
    text = (
        f"{header.policy} batching: {num_requests} requests in {len(trace.steps)} steps, "
        f"{header.max_batch_size} places"
    )
    rest = f" (the first {num_shown} shown)" if num_shown < num_requests else ""
    yield Text(LEFT, 18.0, text + rest, 13.0)


def _legend(lives: Mapping[str, Life]) -> Iterator[Shape]:
    entries = [(PROMPT, "prompt"), (ANSWER, "answer"), (BLOCKS, "KV blocks")]
    if any(life.preempted for life in lives.values()):
        entries.append((PREEMPTED, "preempted"))
    for place, (colour, word) in enumerate(entries):
        yield Rect(LEFT + 90.0 * place, 27.0, 10.0, 10.0, colour)
        yield Text(LEFT + 90.0 * place + 14.0, 36.0, word)


def _row(name: str, life: Life, scale: Scale, top: float, height: float) -> Iterator[Shape]:
    if height >= LABELLED:
        label = name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"
        yield Text(LEFT - 6.0, top + height / 2 + 4.0, label, 11.0, "end")
    tall = height - (1.0 if height >= 4.0 else 0.0)
    for span in _spans(life, scale):
        yield from _bar(name, span, top, tall)
    for place in life.preempted:
        yield Line(scale.starts[place], top, scale.starts[place], top + tall, PREEMPTED, 2.0)


def _bar(name: str, span: Span, top: float, height: float) -> Iterator[Shape]:
    """With the number of tokens in it, where it is a prompt and wide enough."""
    kind, fill = ("prompt", PROMPT) if span.is_prompt else ("answer", ANSWER)
    gap = 1.0 if span.end - span.start > 3.0 else 0.0
    width = max(span.end - span.start - gap, 0.3)
    yield Rect(span.start, top, width, height, fill, f"{name}: {kind}, {span.tokens} tokens")
    if span.is_prompt and width > 24.0 and height > 12.0:
        yield Text(span.start + width / 2, top + height / 2 + 4.0, str(span.tokens), 10.0, "middle", PAPER)


def _spans(life: Life, scale: Scale) -> Iterator[Span]:
    """What a request did, step by step where there is room for it, else joined where it did the same."""
    current: Span | None = None
    last = -1
    for place, tokens in life.ran:
        span = Span(scale.starts[place], scale.ends[place], tokens > 1, tokens)
        if scale.is_fine and current and last == place - 1 and current.is_prompt == span.is_prompt:
            current = Span(current.start, span.end, span.is_prompt, current.tokens + tokens)
        else:
            if current:
                yield current
            current = span
        last = place
    if current:
        yield current


def _memory(trace: Trace, scale: Scale, top: float) -> Iterator[Shape]:
    most = max(record.used for record in trace.steps)
    yield Text(LEFT - 6.0, top + 12.0, "KV blocks", 11.0, "end")
    yield Text(LEFT - 6.0, top + 26.0, f"at most {most} of {trace.header.blocks}", 10.0, "end", "#666666")
    for start, end, used in _plateaus(trace.steps, scale):
        height = MEMORY * used / max(1, most)
        yield Rect(start, top + MEMORY - height, end - start, height, BLOCKS, f"{used} blocks")
    yield Line(LEFT, top, LEFT + scale.width, top, FAINT)
    yield Line(LEFT, top + MEMORY, LEFT + scale.width, top + MEMORY, INK)


def _plateaus(steps: Sequence[StepRecord], scale: Scale) -> Iterator[tuple[float, float, int]]:
    """Stretches of equal use, from the start of a step to that of the next; those too narrow to be seen are
    joined, and count for their highest."""
    start, used = scale.starts[0], steps[0].used
    for place in range(1, len(steps)):
        if steps[place].used != used:
            if scale.starts[place] - start >= NARROWEST:
                yield start, scale.starts[place], used
                start, used = scale.starts[place], steps[place].used
            else:
                used = max(used, steps[place].used)
    yield start, scale.ends[-1], used


def _ticks(scale: Scale, top: float) -> Iterator[Shape]:
    for place, word in scale.ticks():
        yield Line(place, top, place, top + 4.0, INK)
        yield Text(place, top + 16.0, word, 10.0, "middle")
    name = "time" if scale.axis == "time" else "step"
    yield Text(LEFT - 26.0, top + 16.0, name, 11.0, "end")
