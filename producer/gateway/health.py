"""What `grpc.health.v1` says of this gateway: it serves while the broker answers."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerError

SERVICE = "headrace.v1.Inference"
NAMES = ("", SERVICE)


class HealthMonitor:
    """Probes the broker every `interval_s` seconds; an answer that takes longer than that counts as none."""

    def __init__(self, broker: Broker, interval_s: float) -> None:
        self.servicer = health.aio.HealthServicer()
        self._broker = broker
        self._interval_s = interval_s
        self._ping: asyncio.Task[bool] | None = None

    async def check(self) -> bool:
        """Probes once and publishes the outcome."""
        healthy = await self._answers()
        serving = health_pb2.HealthCheckResponse.SERVING
        state = serving if healthy else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in NAMES:
            await self.servicer.set(name, state)
        return healthy

    async def run(self) -> None:
        """Probes for ever."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval_s)

    async def drain(self) -> None:
        """NOT_SERVING from now on, whatever the broker says."""
        await self.servicer.enter_graceful_shutdown()

    async def _answers(self) -> bool:
        """A probe that is not answered goes on, in place of the next one: a broker that was away for long
        does not find a heap of them."""
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(self._answers_a_ping(), name="headrace health")
        try:
            async with asyncio.timeout(self._interval_s):
                return await asyncio.shield(self._ping)
        except TimeoutError:
            return False

    async def _answers_a_ping(self) -> bool:
        try:
            await self._broker.ping()
        except BrokerError:
            return False
        return True
