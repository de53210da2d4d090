"""The way of a request onto the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from headrace.broker.blobs import BlobStore, check_out
from headrace.broker.contract import ConsumerEntry, Published, Serves
from headrace.broker.ids import read_request_id
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.queue_policy import QueuePolicies, QueuePolicy
from headrace.producer.gateway.intake import Intake
from headrace.producer.gateway.lane_depth import LaneDepths
from headrace.producer.gateway.routes import Routes
from headrace.producer.gateway.status import Refusal
from tests.unit.gateway.fake_broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    yield BlobStore(f"memory://{tmp_path.name}", threshold=100, limit=1000)
    MemoryFileSystem.store.clear()


def intake(
    broker: FakeBroker, policies: QueuePolicies | None = None, blobs: BlobStore | None = None
) -> Intake:
    return Intake(broker, Routes(broker, "own"), LaneDepths(broker, policies or {}), blobs)


async def published(desk: Intake, message: Message, model: str = "") -> RequestRef:
    result = await desk.publish(message, model)
    assert isinstance(result, Published)
    return result.ref


async def refused(desk: Intake, message: Message, model: str = "") -> Refusal:
    result = await desk.publish(message, model)
    assert isinstance(result, Refusal)
    return result


async def test_a_request_without_an_id_gets_one_with_lane_and_place_of_its_pool(broker: FakeBroker) -> None:
    broker.registered = [ConsumerEntry("c", "large", tuple(Lane), Serves(("llama",), 1), 0)]
    ref = await published(intake(broker), Message(b"x", lane=Lane.BATCH), "llama")
    place = read_request_id(ref.request_id)
    assert place is not None
    assert (place.lane, place.place) == (Lane.BATCH, 5)
    assert broker.places == [(Lane.BATCH, "large")]
    assert broker.messages[ref].pool == "large"


async def test_an_id_of_the_callers_own_is_kept(broker: FakeBroker) -> None:
    ref = await published(intake(broker), Message(b"x", request_id="mine"))
    assert ref.request_id == "mine"
    assert broker.places == []
    assert broker.messages[ref].pool == "own"


async def test_an_id_that_is_taken_and_a_broker_that_is_away_are_refusals(broker: FakeBroker) -> None:
    desk = intake(broker)
    await published(desk, Message(b"x", request_id="mine"))
    assert (await refused(desk, Message(b"y", request_id="mine"))).code is grpc.StatusCode.ALREADY_EXISTS
    broker.away = True
    assert (await refused(desk, Message(b"x", request_id="mine"))).code is grpc.StatusCode.UNAVAILABLE


async def test_nothing_is_stored_or_published_for_a_model_nobody_serves_or_a_lane_that_is_full(
    broker: FakeBroker, store: BlobStore
) -> None:
    broker.registered = [ConsumerEntry("c", "own", tuple(Lane), Serves(("llama",), 1), 0)]
    desk = intake(broker, {Lane.BATCH: QueuePolicy(size=0)}, store)
    large = Message(b"x" * 500, lane=Lane.BATCH)
    assert (await refused(desk, large, "gpt")).reason == "MODEL_NOT_FOUND"
    assert (await refused(desk, large, "llama")).reason == "LANE_FULL"
    assert broker.messages == {}
    assert await store.sweep(-60) == 0


async def test_a_large_body_goes_to_the_blob_store_before_its_message_is_published(
    broker: FakeBroker, store: BlobStore
) -> None:
    message = Message(b"x" * 101, request_id="r")
    ref = await published(intake(broker, blobs=store), message)
    travelling = broker.messages[ref]
    assert travelling.body == b""
    assert (await check_out(travelling, store)).body == message.body


async def test_the_same_large_body_twice_is_a_duplicate_and_another_a_conflict(
    broker: FakeBroker, store: BlobStore
) -> None:
    desk = intake(broker, blobs=store)
    await published(desk, Message(b"x" * 500, request_id="r"))
    again = await desk.publish(Message(b"x" * 500, request_id="r"), "")
    assert again == Published(RequestRef("r"), duplicate=True)
    assert (await refused(desk, Message(b"y" * 500, request_id="r"))).code is grpc.StatusCode.ALREADY_EXISTS


async def test_a_body_that_the_blob_store_does_not_take_is_the_callers_mistake(
    broker: FakeBroker, store: BlobStore
) -> None:
    refusal = await refused(intake(broker, blobs=store), Message(b"x" * 1001))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "1001" in refusal.message


async def test_a_body_that_the_broker_does_not_take_is_the_callers_mistake(broker: FakeBroker) -> None:
    broker.largest = 10
    refusal = await refused(intake(broker), Message(b"x" * 11))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_TOO_LARGE")


async def test_a_blob_store_that_does_not_answer_is_worth_a_retry(broker: FakeBroker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    desk = intake(broker, blobs=BlobStore(str(tmp_path / "file" / "blobs"), threshold=1))
    refusal = await refused(desk, Message(b"xyz"))
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.retry_after_ms
    assert broker.messages == {}
