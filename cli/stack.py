"""The local stack: an embedded broker unless there is one, consumers, and a gateway, as child processes.

    start: broker ─► consumers, gateway ─► all ready       drain: gateway ─► consumers ─► broker

The gateway drains first, since its streams end only while consumers run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.broker.connect import connect
from headrace.broker.embedded.kafka import EmbeddedKafka, KafkaOptions
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka.address import parse_address
from headrace.cli.broker_keeper import BrokerKeeper, EmbeddedBroker
from headrace.cli.broker_options import with_options
from headrace.cli.engine_options import engine_arguments
from headrace.cli.processes import UNREACHABLE_S, Child, Command, Patience
from headrace.cli.settings import for_child
from headrace.gpu_engine.config import EngineConfig

POLL_S = 0.1
ASK_AGAIN_S = 1.0
EMBEDDED = ("redis", "kafka")  # the brokers that we can start ourselves


@dataclass(frozen=True, slots=True)
class StackOptions:
    """`broker`: `redis` or `kafka` for an embedded one, with its data in `data_dir`, or an address.
    `broker_options` are added to that. `broker_port`: that of the embedded one on loopback (0: any free one;
    None: a unix socket where it has one). `grpc_port` None: no gateway; 0: any free port. `grace_s` bounds
    each stage of a drain. The arguments are passed to each consumer, or gateway, as they are."""

    data_dir: Path
    engine: EngineConfig
    broker: str = "redis"
    broker_options: Mapping[str, str] = field(default_factory=dict)
    broker_port: int | None = None
    prefix: str = "headrace"
    consumers: int = 1
    lease_s: float = 30.0
    log_retention_s: float = 24 * 60 * 60
    served_model_names: tuple[str, ...] = ()
    grpc_port: int | None = None
    grace_s: float = 20.0
    blobs: str | None = None
    consumer_arguments: tuple[str, ...] = ()
    gateway_arguments: tuple[str, ...] = ()


class Stack:
    """The processes, and what they say about themselves. `say(name, line)` gets what they print; it must
    not raise."""

    def __init__(self, options: StackOptions, say: Callable[[str, str], None]) -> None:
        self._options = options
        self._say = say
        self._embedded = embedded_broker(options)
        self._keeper = BrokerKeeper(self._embedded, partial(say, "broker")) if self._embedded else None
        self._gateways: list[Child] = []
        self._consumers: list[Child] = []
        self._grpc: str | None = None
        self.broker_url = options.broker

    async def start(self) -> None:
        """Starts the broker, or checks that it answers (BrokerError where not), and the processes."""
        if self._embedded is not None and self._keeper is not None:
            if isinstance(self._embedded, EmbeddedKafka):
                first = "" if self._embedded.fetched else "; this first time it is fetched (43 MB)"
                self._say("broker", f"starting Kafka{first}")
            await self._keeper.start()
            self.broker_url = self._embedded.url
        await self._look_at_broker()
        self._gateways, self._consumers = self._make_gateways(), self._make_consumers()
        for child in self._children:
            child.start()

    async def run(self) -> None:
        """Keeps everything alive; raises ChildFailed where that is hopeless, and returns after a drain."""
        await asyncio.gather(*(child.wait() for child in self._children))

    async def changes(self) -> AsyncIterator[dict[str, Any]]:
        """What the ready file shall say: once all are up, and again whenever that has changed."""
        told: dict[str, Any] | None = None
        while True:
            up = all(child.ready() is not None for child in self._children)
            endpoints = self._endpoints()
            if (up or told is not None) and endpoints != told:
                told = endpoints
                yield endpoints
            await asyncio.sleep(POLL_S)

    async def until_healthy(self) -> None:
        async for _ in self.changes():
            return

    async def drain(self) -> None:
        """Stops everything in order."""
        for stage in (self._gateways, self._consumers):
            await asyncio.gather(*(child.stop(self._options.grace_s + 5) for child in stage))
        await self._stop_broker()

    async def kill(self) -> None:
        """Stops everything now; what was queued or running is found again at the next start."""
        await asyncio.gather(*(child.stop(0) for child in self._children))
        await self._stop_broker()

    @property
    def _whole_broker_url(self) -> str:
        """With the options, which may hold a password: not to be shown."""
        return with_options(self.broker_url, self._options.broker_options)

    @property
    def _children(self) -> list[Child]:
        return [*self._gateways, *self._consumers]

    def _endpoints(self) -> dict[str, Any]:
        gateways = [ready for child in self._gateways if (ready := child.ready())]
        consumers = [ready for child in self._consumers if (ready := child.ready())]
        pids = {
            "gateway": [ready["gateway"] for ready in gateways],
            "consumer": [ready["consumer"] for ready in consumers],
            "engine": [ready["engine"] for ready in consumers],
        }
        return {"broker": self.broker_url, "grpc": self._grpc, "pids": pids}

    def _make_gateways(self) -> list[Child]:
        if self._options.grpc_port is None:
            return []
        # One port for all lives of the gateway: clients come back to it.
        port = self._options.grpc_port or free_port()
        self._grpc = f"127.0.0.1:{port}"
        arguments = ("--grpc-port", str(port), *self._options.gateway_arguments)
        return [self._child("gateway", "gateway", *arguments)]

    def _make_consumers(self) -> list[Child]:
        engine = self._options.engine
        if engine.threads is None:
            engine = engine.model_copy(update={"threads": threads_each(self._options.consumers)})
        names = [part for name in self._options.served_model_names for part in ("--served-model-name", name)]
        times = ("--lease", str(self._options.lease_s), "--log-retention", str(self._options.log_retention_s))
        arguments = [*times, *names, *engine_arguments(engine), *self._options.consumer_arguments]
        numbers = range(1, self._options.consumers + 1)
        return [self._child("consumer", f"consumer-{number}", *arguments) for number in numbers]

    def _child(self, kind: str, name: str, *arguments: str) -> Child:
        run_dir = self._options.data_dir / "run"
        run_dir.mkdir(parents=True, exist_ok=True)
        ready_file = run_dir / f"{name}.json"
        common = ("--prefix", self._options.prefix, "--grace", str(self._options.grace_s))
        argv = (sys.executable, "-m", "headrace.cli.main", kind, *common, "--ready-file", str(ready_file))
        env = for_child(parent=os.getpid(), broker=self._whole_broker_url, blobs=self._options.blobs)
        command = Command(name, kind, (*argv, *arguments), ready_file, env)
        return Child(command, self._say, Patience())

    async def _look_at_broker(self) -> None:
        """Whether it can be used at all. One of ours that was just started may take its time to answer, on a
        machine with other things to do."""
        end = time.monotonic() + (0 if self._embedded is None else UNREACHABLE_S)
        while True:
            try:
                broker = await connect(self._whole_broker_url, prefix=self._options.prefix)
                return await broker.close()
            except BrokerUnavailable as error:
                if time.monotonic() >= end:
                    raise
                self._say("broker", f"{error}; asking it again")
            await asyncio.sleep(ASK_AGAIN_S)

    async def _stop_broker(self) -> None:
        if self._keeper is not None:
            await self._keeper.stop()


def embedded_broker(options: StackOptions) -> EmbeddedBroker | None:
    """The broker that comes with the stack; None where it has an address of its own."""
    match options.broker:
        case "redis":
            return EmbeddedValkey(options.data_dir / "broker", port=options.broker_port)
        case "kafka":
            return EmbeddedKafka(options.data_dir / "kafka", KafkaOptions(port=options.broker_port or 0))
    return None


def check_embedded(broker: str, options: Mapping[str, str]) -> None:
    """Raises BrokerError for options that the broker would refuse once it is up."""
    match broker:
        case "redis":
            # Here, since a client library takes long to load, and help texts need none.
            from headrace.broker.redis_streams.address import client_for

            client_for(with_options("redis://127.0.0.1:1", options))
        case "kafka":
            parse_address("kafka://127.0.0.1:1", options)


def free_port() -> int:
    """A port of loopback that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def threads_each(engines: int) -> int:
    """Engines on one machine share its cores: more threads than cores make all of them slower."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // engines)
