"""A transaction that stays open is ended; one that comes and goes, or is gone, is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as ke
import pytest

from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.leftovers import Leftovers


class Cluster:
    """Clients and admin in one. `tells`: what is said of the transaction at each look; the last one stays."""

    def __init__(self, *tells: object) -> None:
        self._tells, self.ended = list(tells), list[str]()

    async def admin(self, call: Callable[[Any], Any]) -> Any:
        told = self._tells.pop(0) if len(self._tells) > 1 else self._tells[0]
        if isinstance(told, Exception):
            raise told
        return call(SimpleNamespace(describe_transactions=lambda names: told_of(told, names)))

    async def run(self, call: object, options: dict[str, str]) -> None:
        self.ended.append(options["transactional_id"])

    def producer_options(self, **more: str) -> dict[str, str]:
        return more


def told_of(told: object, names: list[str]) -> dict[str, object]:
    if told is None:
        raise ke.TransactionalIdNotFoundError
    state, began = ("Ongoing", told) if isinstance(told, int) else (told, 0)
    found = SimpleNamespace(
        state=SimpleNamespace(value=state), producer_id=1, producer_epoch=2, transaction_start_time_ms=began
    )
    return dict.fromkeys(names, found)


async def looked_after(cluster: Cluster) -> list[str]:
    leftovers = Leftovers(cast(Clients, cluster), open_s=0.001)
    leftovers.look_after(["dead", "dead"])
    async with asyncio.timeout(5):
        await asyncio.gather(*leftovers._tasks.values())
    return cluster.ended


@pytest.mark.parametrize(
    "tells",
    [(5, 5), (BrokerUnavailable("away"), 5, 5), (5, BrokerUnavailable("away"), 5, 5)],
    ids=["at once", "behind an outage", "with an outage between"],
)
async def test_one_that_stays_open_is_ended_once(tells: tuple[object, ...]) -> None:
    assert await looked_after(Cluster(*tells)) == ["dead"]


@pytest.mark.parametrize(
    "tells",
    [(None,), ("CompleteCommit",), (5, "CompleteCommit"), (5, 6), (BrokerRefused("no right"),)],
    ids=["never heard of", "over", "just ending", "another one", "not allowed to look"],
)
async def test_one_that_does_not_stay_is_left_alone(tells: tuple[object, ...]) -> None:
    assert await looked_after(Cluster(*tells)) == []


async def test_nothing_goes_on_behind_its_close() -> None:
    leftovers = Leftovers(cast(Clients, Cluster(5)), open_s=60)
    leftovers.look_after(["dead"])
    await leftovers.close()
    assert not leftovers._tasks
