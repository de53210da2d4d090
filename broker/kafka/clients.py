"""Makes producers, consumers and admin clients with the options that the protocol needs.

kafka-python blocks: its calls run on threads, so that the event loop never waits. A consumer belongs to one
thread for all its life (two threads on one consumer hang); `ConsumerThread` is both. Producers may be called
from any thread. An admin client, too, runs each call on its own I/O thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import kafka.errors as ke
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.failures import translate, translated
from headrace.broker.kafka.odd_headers import tolerate_odd_headers
from headrace.broker.kafka.settings import KafkaSettings

T = TypeVar("T")
ConsumerRecord: TypeAlias = Any  # kafka-python's: topic, partition, offset, timestamp, key, value, headers
Acknowledged: TypeAlias = Any  # kafka-python's RecordMetadata: topic, partition, offset, timestamp

_BLOCKING_CALLS = 8  # at a time
_CONNECT_MS = 10_000
_LEADER_S = 3.0  # longer than an election takes
_LOOK_AGAIN_S = 0.05
DELIVERY_MS = 30_000  # after that a producer gives a record up


class Clients:
    """The clients of one connection. `servers`: the cluster's name in messages."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.servers = "kafka://" + ",".join(settings.servers)
        self._threads = ThreadPoolExecutor(_BLOCKING_CALLS, "headrace kafka")
        self._admin: asyncio.Future[KafkaAdminClient] | None = None
        self._closed = False
        tolerate_odd_headers()
        if (log := logging.getLogger("kafka")).level == logging.NOTSET:
            # It reports each attempt to reach a node that is away; we report what came of it.
            log.setLevel(logging.CRITICAL)

    # ------------------------------------------------------------------------------------------- options

    def options(self) -> dict[str, Any]:
        """What all clients are made with."""
        return {
            "bootstrap_servers": list(self.settings.servers),
            "bootstrap_timeout_ms": _CONNECT_MS // 2,
            "request_timeout_ms": 15_000,
            "reconnect_backoff_max_ms": 1_000,
            "metadata_max_age_ms": 60_000,
            **self.settings.security,
        }

    def producer_options(self, **more: Any) -> dict[str, Any]:
        """Of an idempotent producer that answers once all replicas in sync have it."""
        return {
            **self.options(),
            "acks": "all",
            "enable_idempotence": True,
            "linger_ms": 0,
            "batch_size": 256 << 10,
            "retry_backoff_ms": 5,
            "max_block_ms": _CONNECT_MS,
            "delivery_timeout_ms": DELIVERY_MS,
            "max_request_size": self.settings.max_sent_bytes,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            **more,
        }

    def consumer_options(self, **more: Any) -> dict[str, Any]:
        """Of a consumer that commits nothing by itself. Without a `group_id` it is only assigned."""
        return {
            **self.options(),
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "fetch_max_wait_ms": 100,
            "retry_backoff_ms": 20,
            "max_partition_fetch_bytes": 1 << 20,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            **more,
        }

    # -------------------------------------------------------------------------------------------- making

    async def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A blocking call on a thread, its errors translated."""
        return await self._on(self._threads, lambda: call(*args, **kwargs))

    async def producer(self, **more: Any) -> KafkaProducer:
        """Its owner closes it by `close_producer`."""
        return await self.run(KafkaProducer, **self.producer_options(**more))

    async def close_producer(self, producer: KafkaProducer, patience_s: float = 2.0) -> None:
        """What it has not sent by then is given up: whoever waits for it gets an error."""
        await asyncio.get_running_loop().run_in_executor(None, abandon, producer, patience_s)

    async def consumer(self, **more: Any) -> ConsumerThread:
        """A consumer on a thread of its own; its owner closes it."""
        self._check_open()
        thread = ConsumerThread(self.servers)
        await thread.start(self.consumer_options(**more))
        return thread

    async def admin(self, call: Callable[[KafkaAdminClient], T]) -> T:
        """One call of the admin client, which is made at its first use."""
        if self._admin is None or (self._admin.done() and self._admin.exception() is not None):
            options = {**self.options(), "retry_backoff_ms": 20}
            self._admin = asyncio.ensure_future(self.run(KafkaAdminClient, **options))
        client = await asyncio.shield(self._admin)
        return await self.run(call, client)

    async def offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec | int, level: str = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        """First or end offsets, or the first ones stamped at a time (unix ms) or later: -1 where there is
        none. By the admin client: a consumer's own look-up leaves out, without a word, partitions whose
        leader it does not know yet. One that has none for a moment, as in a topic that was just made, is
        waited for."""
        specs, deadline = dict.fromkeys(partitions, spec), time.monotonic() + _LEADER_S
        while True:
            try:
                found = await self.admin(lambda a: a.list_partition_offsets(specs, isolation_level=level))
            except BrokerUnavailable as error:
                if not isinstance(error.__cause__, ke.UnknownBrokerIdError) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)
            else:
                return {partition: found[partition].offset for partition in specs}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.offsets(partitions, OffsetSpec.LATEST)

    async def acknowledged(self, futures: Sequence[Any]) -> list[Acknowledged]:
        """Waits for all records of `producer.send`; raises the first failure once all have ended."""
        results = await gather_kafka(futures)
        for result in results:
            if isinstance(result, BaseException):
                raise translate(result, self.servers) from result
        return results

    async def close(self) -> None:
        self._closed = True
        if self._admin is not None:
            admin = (await asyncio.gather(self._admin, return_exceptions=True))[0]
            if isinstance(admin, KafkaAdminClient):
                await asyncio.get_running_loop().run_in_executor(None, admin.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _on(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        self._check_open()
        with translated(self.servers):
            return await asyncio.get_running_loop().run_in_executor(threads, call)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerRefused(f"the connection to {self.servers} was closed by this process")


class ConsumerThread:
    """A consumer and the one thread that touches it."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._thread = ThreadPoolExecutor(1, "headrace kafka consumer")
        self._consumer: KafkaConsumer | None = None
        self._closed = False

    async def start(self, options: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(self._thread, lambda: KafkaConsumer(**options))
        try:
            with translated(self._servers):
                self._consumer = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def call(self, call: Callable[[KafkaConsumer], T]) -> T:
        """Runs on the thread, after whatever runs there now; errors are translated."""
        if self._closed:
            raise BrokerUnavailable(f"the connection to {self._servers} was closed")
        with translated(self._servers):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, self._consumer)

    async def poll(self, timeout_ms: int, max_records: int = 500) -> list[ConsumerRecord]:
        """The next records of all assigned partitions, each partition's in order."""
        polled = await self.call(lambda c: c.poll(timeout_ms=timeout_ms, max_records=max_records))
        return [record for records in polled.values() for record in records]

    async def poll_from(
        self, partition: TopicPartition, timeout_ms: int, max_records: int = 500
    ) -> tuple[list[ConsumerRecord], int]:
        """The next records of the only partition, and the offset behind them: it moves on without records,
        too, where there are only marks of transactions."""

        def poll(consumer: KafkaConsumer) -> tuple[list[ConsumerRecord], int]:
            polled = consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
            return polled.get(partition, []), consumer.position(partition)

        return await self.call(poll)

    async def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Reads these partitions from now on; those that were read before go on where they were."""

        def assign(consumer: KafkaConsumer) -> None:
            before = consumer.assignment()
            consumer.assign(list(starts))
            for partition, offset in starts.items():
                if partition not in before:
                    consumer.seek(partition, offset)

        await self.call(assign)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        consumer = self._consumer
        if consumer is not None:
            closing = asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: consumer.close(autocommit=False, timeout_ms=1_000)
            )
            with translated(self._servers):
                await asyncio.shield(closing)
        self._thread.shutdown(wait=False)


def abandon(producer: KafkaProducer, patience_s: float = 0.0) -> None:
    """Ends a producer; what it has not sent when the patience is over is given up."""
    try:
        producer.close(timeout=patience_s)
    except (ke.KafkaError, OSError):
        # `close` gives up halfway when there is something to wait for.
        producer._closed = True
        producer._sender.force_close()


def _close_made(making: asyncio.Future[KafkaConsumer]) -> None:
    """Nobody waits for this consumer any more."""
    if not making.cancelled() and making.exception() is None:
        making.result().close(autocommit=False, timeout_ms=1_000)


async def gather_kafka(futures: Iterable[Any]) -> list[Any]:
    """Results or exceptions of kafka-python's futures; one wake-up of the loop for all of them."""
    waiting = list(futures)
    if not waiting:
        return []
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    left, lock = len(waiting), threading.Lock()

    def ended(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(ready.set)

    for future in waiting:
        future.add_both(ended)
    await ready.wait()
    return [future.exception if future.failed() else future.value for future in waiting]
