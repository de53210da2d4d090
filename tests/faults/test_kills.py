"""Consumers and engines die in mid-answer; readers notice nothing but a pause."""

import asyncio
import secrets
from pathlib import Path

import pytest

from tests.faults.chaos import LEASE_S, SIM, chaos
from tests.faults.readers import watch_answer
from tests.faults.stack import Stack, running_stack

KILLS = 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_100_kills_at_random_instants_lose_nothing_and_show_nothing_twice(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    with running_stack(tmp_path, *SIM, lease_s=LEASE_S) as stack:
        report = asyncio.run(chaos(stack, seed, KILLS))
    print(report)
    assert sum(report.kills.values()) == KILLS
    assert report.restarted == 0, f"answers began anew: {report}"
    assert report.resumed >= KILLS / 2, f"too few answers were resumed to prove anything: {report}"


async def frozen_in_mid_answer(stack: Stack) -> list[int]:
    """Freezes each consumer in turn past its lease and wakes it again, while answers stream."""
    readers = [
        asyncio.create_task(watch_answer(stack.grpc, f"Long story {n}", tokens=500, seed=n)) for n in range(8)
    ]
    for pid in stack.pids("consumer"):
        await asyncio.sleep(0.8)
        stack.freeze(pid)
        await asyncio.sleep(2.5 * LEASE_S)
        stack.thaw(pid)
    answers = await asyncio.gather(*readers)
    assert not any(seen.restarted for seen in answers)
    return [seen.resumed for seen in answers]


@pytest.mark.slow
def test_a_consumer_that_wakes_past_its_lease_shows_nothing(tmp_path: Path) -> None:
    with running_stack(tmp_path, *SIM, lease_s=LEASE_S) as stack:
        resumed = asyncio.run(frozen_in_mid_answer(stack))
    assert any(resumed), "no answer was taken over: the freeze proved nothing"
