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
    """One answer whose consumer was killed. `wait_s`: from SIGKILL to the next token shown. `kept`: tokens
    that the new owner prefilled and did not generate again. `again`: tokens that the dead one had made, by
    the pace of its engine, and nobody had seen: generated once more."""

    request_id: str
    wait_s: float
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
        yield Interruption(transcript.request_id, token.at_s - at, heir.kept, unseen)


def _first_token(shown: Sequence[Shown]) -> Shown | None:
    return next((event for event in shown if event.kind == "delta"), None)


def percentile_95(values: Sequence[float]) -> float:
    """0 where there are none; the largest of few."""
    if len(values) < 20:
        return max(values, default=0.0)
    return quantiles(values, n=20)[-1]


def summary(found: Sequence[Interruption]) -> str:
    if not found:
        return "no answer was interrupted"
    waits = [each.wait_s for each in found]
    again = [each.again for each in found]
    kept = sum(each.kept for each in found) / len(found)
    return (
        f"{len(found)} answers interrupted: next token after p95 {percentile_95(waits):.2f} s "
        f"(longest {max(waits):.2f} s); {kept:.0f} tokens kept, and "
        f"{sum(again) / len(again):.1f} (at most {max(again):.1f}) made again, on average and at most"
    )
