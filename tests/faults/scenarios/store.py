"""The store of large bodies goes away, and comes back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

from tests.faults.checker.check import gather
from tests.faults.checker.evidence import Key
from tests.faults.checker.record import Accepted
from tests.faults.run import Run
from tests.faults.scenarios.acts import until, victim_of

_SENT = 5  # whose bodies nobody can fetch when they are pulled


async def store_away(run: Run) -> None:
    """Consumers and gateways do not see it; a plain client still does. Whoever needs a body is put off, and
    a consumer dies meanwhile."""
    away = run.stack.store.with_name("away")
    async with run.load(streams=6, tokens=(20, 80), large=0.7):
        for _ in range(run.rounds):
            await asyncio.sleep(0.5)
            run.store = run.stack.store.rename(away)
            sent = [await run.publish(tokens=20, named=n % 2 == 0, large=True) for n in range(_SENT)]
            await until(functools.partial(_put_off, run, sent), "retries of all that were sent")
            if victim := victim_of(run, "consumer"):
                run.stack.kill(victim)
            run.store = away.rename(run.stack.store)
            await asyncio.sleep(0.5)


def _put_off(run: Run, sent: Sequence[Accepted]) -> bool:
    """Whether each of them was handed back to wait, by what its log says."""
    logs = gather(run.server.url, run.prefix).logs
    return all(
        any(event.kind == "handed" for event in logs.get(Key("", each.request_id), [])) for each in sent
    )
