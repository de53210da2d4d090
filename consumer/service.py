"""The consumer as a service: connects the broker, starts the engine, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

from headrace.broker.blobs import BlobStore
from headrace.broker.connect import connect
from headrace.broker.contract import Broker, ConsumerSession
from headrace.broker.redis_streams.settings import Retention
from headrace.consumer.drain import Drain, drain_on_signals
from headrace.consumer.engine_process import EngineHandle, EngineProcess
from headrace.consumer.errors import EngineSick, EngineUnusable
from headrace.consumer.prepare import Preparer, served_names
from headrace.consumer.ready_file import write_ready_file
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.worker import Parts, Worker
from headrace.gpu_engine.api import EngineInfo
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.load import load_tokenizer

log = logging.getLogger(__name__)

EXIT_DRAINED = 0
EXIT_SICK = 1


async def run_consumer(settings: ConsumerSettings) -> int:
    """Runs one consumer until SIGTERM or SIGINT; returns the exit status of the process.

    0: drained. 1: the engine died too often, all requests were handed back. What a user can put right at
    the start is raised with its sentence: EngineUnusable, and BrokerError where there is no usable broker.
    """
    drain = Drain(settings.grace_s)
    with drain_on_signals(drain):
        retention = Retention(log_ms=round(settings.log_retention_s * 1000))
        broker = await connect(settings.broker, prefix=settings.prefix, retention=retention)
        async with _closing(broker):
            session = await broker.consume(settings.lanes, settings.lease_ms, pool=settings.pool)
            async with _closing(session):
                return await _serve(broker, session, settings, drain)


@contextlib.asynccontextmanager
async def _closing(resource: Broker | ConsumerSession) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await resource.close()


async def _serve(broker: Broker, session: ConsumerSession, settings: ConsumerSettings, drain: Drain) -> int:
    store = BlobStore(settings.blobs) if settings.blobs is not None else None
    # The tokenizer loads beside the engine: both take seconds.
    tokenizer = asyncio.create_task(_load_tokenizer(settings))
    preparers: list[Preparer] = []

    async def prepare(info: EngineInfo) -> Preparer:
        names = served_names(settings, info)
        preparers.append(Preparer(await tokenizer, names, store, info.max_input_length, info.adapters))
        return preparers[0]

    def on_ready(info: EngineInfo, engine: EngineHandle) -> None:
        log.info("the engine is ready: %s%s, process %d", info.model, _beside(info), engine.pid)
        gc.freeze()  # what is there now stays: no collection need look at it
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, engine_pid=engine.pid, model=settings.model or info.model)

    parts = Parts(session, broker, lambda: EngineProcess(settings.engine), prepare, on_ready)
    try:
        await Worker(parts, settings, drain).run()
    except EngineSick as error:
        log.error("%s", error)
        return EXIT_SICK
    finally:
        tokenizer.cancel()
        await asyncio.gather(tokenizer, return_exceptions=True)
        for preparer in preparers:
            preparer.close()
    return EXIT_DRAINED


def _beside(info: EngineInfo) -> str:
    """What is served with the model, and its size."""
    if not info.adapters:
        return ""
    return f" with LoRA adapters {', '.join(info.adapters)} ({info.adapter_bytes / 2**20:.1f} MiB)"


async def _load_tokenizer(settings: ConsumerSettings) -> Tokenizer:
    engine = settings.engine
    try:
        return await asyncio.to_thread(
            load_tokenizer, engine.model, engine.engine, engine.load_format, engine.tool_call_format
        )
    except ModelError as error:
        raise EngineUnusable(str(error)) from error
