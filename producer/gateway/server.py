"""Composition of the gateway: the calls, health, reflection, and an orderly end.

SIGTERM ─► health NOT_SERVING ─► no new calls, streams go on ─► grace over: streams end with
           UNAVAILABLE, their readers re-attach elsewhere ─► closed
"""

from __future__ import annotations

import asyncio

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.broker.blobs import BlobStore
from headrace.broker.contract import Broker
from headrace.producer.gateway.address import address, obstacle
from headrace.producer.gateway.decoding import RefuseUndecodable
from headrace.producer.gateway.health import SERVICE, HealthMonitor
from headrace.producer.gateway.in_flight import InFlight
from headrace.producer.gateway.intake import Intake
from headrace.producer.gateway.lane_depth import LaneDepths
from headrace.producer.gateway.routes import Routes
from headrace.producer.gateway.servicer import InferenceServicer
from headrace.producer.gateway.settings import GatewaySettings
from headrace.v1 import inference_pb2_grpc


class GatewayError(Exception):
    """The gateway cannot start; the text says what to do."""


class Gateway:
    """A gRPC server over a broker that the caller owns. Raises BlobError for a blob store that cannot be."""

    def __init__(self, broker: Broker, settings: GatewaySettings) -> None:
        self._settings = settings
        self._servicer = InferenceServicer(broker, _intake(broker, settings), InFlight(settings.limits))
        self._health = HealthMonitor(broker, settings.health_interval_s)
        self._probing: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(
            interceptors=[RefuseUndecodable(SERVICE)], options=settings.channel_options()
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if settings.reflection:
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    async def start(self) -> int:
        """Listens and serves; returns the port. Raises GatewayError where the port cannot be had."""
        host, port = self._settings.host, self._settings.port
        if why := await asyncio.to_thread(obstacle, host, port):
            raise GatewayError(f"cannot listen on {address(host, port)}: {why}")
        try:
            port = self._server.add_insecure_port(address(host, port))
        except RuntimeError as error:  # taken in the meantime
            raise GatewayError(f"cannot listen on {address(host, port)}: {error}") from error
        await self._health.check()
        await self._server.start()
        self._probing = asyncio.ensure_future(self._health.run())
        return port

    async def drain(self, grace_s: float) -> None:
        """Stops in order; returns once everything is closed, at the latest shortly after `grace_s`."""
        await self._health.drain()
        if self._probing is not None:
            self._probing.cancel()
        stopping = asyncio.ensure_future(self._server.stop(grace_s + 1))
        done, _ = await asyncio.wait({stopping}, timeout=grace_s)
        if not done:
            await self._servicer.close_streams()
        await stopping
        await self._servicer.close_streams()


def _intake(broker: Broker, settings: GatewaySettings) -> Intake:
    blobs = None
    if settings.blobs is not None:
        blobs = BlobStore(
            settings.blobs.get_secret_value(), threshold=settings.blob_threshold, limit=settings.blob_limit
        )
    return Intake(broker, Routes(broker, settings.pool), LaneDepths(broker, settings.queue), blobs)
