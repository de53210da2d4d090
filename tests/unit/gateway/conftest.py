from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from pydantic import SecretStr

from headrace.producer.gateway.server import Gateway
from headrace.producer.gateway.settings import GatewaySettings
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.unit.gateway.fake_broker import FakeBroker


@pytest.fixture
def settings() -> GatewaySettings:
    return GatewaySettings(broker=SecretStr("fake://"), port=0, health_interval_s=0.05)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def gateway(broker: FakeBroker, settings: GatewaySettings) -> AsyncIterator[Gateway]:
    gateway = Gateway(broker, settings)
    yield gateway
    await gateway.drain(0)


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    port = await gateway.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> InferenceStub:
    return InferenceStub(channel)


@pytest.fixture
def a_short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leaves waits less long for a log that stays silent."""
    monkeypatch.setattr("headrace.producer.gateway.disconnects._LOOK_S", 0.1)
