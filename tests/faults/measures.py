"""What a run's transcripts tell about interruptions: how long readers waited, and what was done twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

from tests.faults.checker.record import Shown, Transcript
from tests.faults.stack import pid_of


@dataclass(frozen=True, slots=True)
class Interruption:
    """One answer whose consumer was killed. `wait_s`: from SIGKILL to the next token shown. `struck_again`: a
    further process was killed meanwhile. `kept`: tokens that the new owner prefilled and did not generate
    again. `again`: tokens that the dead one had made, by the pace of its engine, and nobody had seen:
    generated once more."""

    request_id: str
    wait_s: float
    struck_again: bool
    kept: int
    again: float


def interruptions(
    transcripts: Sequence[Transcript], kills: Sequence[tuple[float, int]], step_s: float
) -> list[Interruption]:
    return [found for transcript in transcripts for found in _of(transcript, dict_of(kills), step_s)]


def dict_of(kills: Sequence[tuple[float, int]]) -> dict[int, float]:
    return {pid: at for at, pid in kills}


def _of(transcript: Transcript, killed: dict[int, float], step_s: float) -> Iterator[Interruption]:
    owners = [(index, event) for index, event in enumerate(transcript.shown) if event.kind == "started"]
    for (first, owner), (second, heir) in pairwise(owners):
        at = killed.get(pid_of(owner.consumer) or 0)
        token = _first_token(transcript.shown[second:])
        if at is None or token is None or heir.consumer == owner.consumer:
            continue
        seen = [event.at_s for event in transcript.shown[first:second] if event.kind == "delta"]
        unseen = max(0.0, at - max(seen)) / step_s if seen and step_s else 0.0
        again = any(at < other < token.at_s for other in killed.values())
        yield Interruption(transcript.request_id, token.at_s - at, again, heir.kept, unseen)


def _first_token(shown: Sequence[Shown]) -> Shown | None:
    return next((event for event in shown if event.kind == "delta"), None)


def percentile_95(values: Sequence[float]) -> float:
    """0 where there are none; the largest of few."""
    if len(values) < 20:
        return max(values, default=0.0)
    return quantiles(values, n=20)[-1]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or of several together."""

    requests: int = 0
    streams: int = 0
    kills: int = 0
    restarted: int = 0
    interrupted: tuple[Interruption, ...] = ()

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.requests + other.requests,
            self.streams + other.streams,
            self.kills + other.kills,
            self.restarted + other.restarted,
            self.interrupted + other.interrupted,
        )

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, each ended once; {self.streams} streams, each shown as its log says; "
            f"{self.kills} kills; {_told(self.interrupted)}"
            + (f"; {self.restarted} began anew" if self.restarted else "")
        )


def figures(
    requests: int, transcripts: Sequence[Transcript], kills: Sequence[tuple[float, int]], step_s: float
) -> Figures:
    restarted = sum(any(event.kind == "restarted" for event in each.shown) for each in transcripts)
    found = interruptions(transcripts, kills, step_s)
    return Figures(requests, len(transcripts), len(kills), restarted, tuple(found))


def _told(found: Sequence[Interruption]) -> str:
    if not found:
        return "no consumer died in mid-answer"
    waits, again = [each.wait_s for each in found], [each.again for each in found]
    alone = [each.wait_s for each in found if not each.struck_again]
    kept = sum(each.kept for each in found) / len(found)
    return (
        f"{len(found)} answers resumed behind a SIGKILL: next token after p95 {percentile_95(waits):.2f} s, "
        f"of the {len(alone)} not struck again meanwhile {percentile_95(alone):.2f} s; {kept:.0f} tokens "
        f"kept on average, {sum(again) / len(again):.1f} made again (at most {max(again):.1f})"
    )
