"""To which pool a request goes."""

from __future__ import annotations

import grpc
import pytest

from headrace.broker.contract import ConsumerEntry, Serves
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.producer.gateway.routes import MEMORY_S, TTL_S, Routes
from headrace.producer.gateway.status import Refusal
from tests.unit.gateway.clock import Clock
from tests.unit.gateway.fake_broker import FakeBroker

ALL = tuple(Lane)


def consumer(pool: str, *models: str, lanes: tuple[Lane, ...] = ALL) -> ConsumerEntry:
    return ConsumerEntry(f"c-{pool}", pool, lanes, Serves(models, 8), 0)


def desk(*registered: ConsumerEntry, pool: str = DEFAULT_POOL) -> tuple[FakeBroker, Clock, Routes]:
    broker, clock = FakeBroker(), Clock()
    broker.registered = list(registered)
    return broker, clock, Routes(broker, pool, clock)


async def test_without_a_model_the_gateways_own_pool_is_meant_and_nobody_is_asked() -> None:
    broker, _, routes = desk(consumer("large", "llama"), pool="small")
    assert await routes.pool_for("", Lane.BATCH) == "small"
    assert not broker.asked


@pytest.mark.parametrize(
    ("model", "pool"), [("qwen", DEFAULT_POOL), ("llama", "large"), ("both", DEFAULT_POOL)]
)
async def test_a_model_goes_to_a_pool_that_serves_it_its_own_first(model: str, pool: str) -> None:
    _, _, routes = desk(consumer("large", "llama", "both"), consumer(DEFAULT_POOL, "qwen", "both"))
    assert await routes.pool_for(model, Lane.BATCH) == pool


async def test_of_other_pools_one_that_serves_the_lane_is_chosen_if_there_is_one() -> None:
    _, _, routes = desk(
        consumer("a", "m", lanes=(Lane.BATCH,)), consumer("b", "m", lanes=(Lane.INTERACTIVE,))
    )
    found = [await routes.pool_for("m", lane) for lane in (Lane.BATCH, Lane.INTERACTIVE, Lane.STANDARD)]
    assert found == ["a", "b", "a"]


async def test_a_model_that_nobody_serves_is_refused_with_those_that_are() -> None:
    _, _, routes = desk(consumer("large", "llama", "llama-2"), consumer(DEFAULT_POOL, "qwen"))
    refusal = await routes.pool_for("gpt", Lane.BATCH)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert refusal.param == "request.model"
    assert all(name in refusal.message for name in ("gpt", "'llama'", "'llama-2'", "'qwen'"))


async def test_a_long_list_of_models_is_cut() -> None:
    _, _, routes = desk(consumer("a", *(f"model-{number:04}" for number in range(1000))))
    refusal = await routes.pool_for("x" * 100_000, Lane.BATCH)
    assert isinstance(refusal, Refusal)
    assert "and 980 more" in refusal.message
    assert len(refusal.message) < 2_000


async def test_an_empty_registry_accepts_since_consumers_may_come() -> None:
    _, _, routes = desk(pool="small")
    assert await routes.pool_for("llama", Lane.BATCH) == "small"


async def test_a_restart_of_the_only_consumer_refuses_nothing_for_a_minute() -> None:
    broker, clock, routes = desk(consumer("large", "llama"), consumer(DEFAULT_POOL, "qwen"))
    assert await routes.pool_for("llama", Lane.BATCH) == "large"
    broker.registered.pop(0)
    clock.now += MEMORY_S - 1
    assert await routes.pool_for("llama", Lane.BATCH) == "large"
    clock.now += 2
    assert isinstance(await routes.pool_for("llama", Lane.BATCH), Refusal)


async def test_its_pool_is_remembered_even_when_all_consumers_restart_together() -> None:
    broker, clock, routes = desk(consumer("large", "llama"))
    assert await routes.pool_for("llama", Lane.BATCH) == "large"
    broker.registered.clear()
    clock.now += TTL_S
    assert await routes.pool_for("llama", Lane.BATCH) == "large"


async def test_the_registry_is_read_at_most_once_in_its_time() -> None:
    broker, clock, routes = desk(consumer(DEFAULT_POOL, "qwen"))
    for _ in range(20):
        await routes.pool_for("qwen", Lane.BATCH)
    assert broker.asked["consumers"] == 1
    broker.registered.append(consumer("large", "llama"))
    clock.now += TTL_S
    assert await routes.pool_for("llama", Lane.BATCH) == "large"


async def test_a_registry_that_cannot_be_read_is_the_brokers_error() -> None:
    broker, _, routes = desk()
    broker.away = True
    with pytest.raises(BrokerUnavailable):
        await routes.pool_for("llama", Lane.BATCH)
