"""A server that is full takes nothing more, and what runs keeps its leases meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import Broker, Serves
from headrace.broker.errors import BrokerUnavailable
from tests.integration.redis.steps import LANES, publish, run

LEASE_MS = 400


async def test_leases_are_renewed_in_a_server_that_is_full(broker: Broker, client: Redis) -> None:
    await publish(broker, "r")
    session, other = await broker.consume(LANES, LEASE_MS), await broker.consume(LANES, LEASE_MS)
    await session.announce(Serves(("model",), 4))
    owner = await run(session)
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(BrokerUnavailable):
            await owner.start()
        for _ in range(8):
            assert await session.heartbeat() == []
            assert await other.pull(1, LEASE_MS // 4) == []
    finally:
        await client.config_set("maxmemory", "0")
    assert await owner.start()


async def test_what_it_refuses_to_one_caller_is_not_told_to_others(broker: Broker, client: Redis) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LEASE_MS)
    owner = await run(session)
    await client.config_set("maxmemory", "1")
    try:
        started, lost = await asyncio.gather(owner.start(), session.heartbeat(), return_exceptions=True)
    finally:
        await client.config_set("maxmemory", "0")
    assert isinstance(started, BrokerUnavailable)
    assert lost == []
