"""`headrace consumer`: one consumer and its engine."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.broker.message import Lane
from headrace.cli import options, service_options
from headrace.cli.engine_options import takes_engine
from headrace.cli.event_loop import run_service
from headrace.cli.models import served_names
from headrace.cli.ready_file import check_place
from headrace.cli.settings import read_environment
from headrace.consumer.settings import ConsumerSettings, OrderSettings, WatchdogSettings
from headrace.gpu_engine.config import EngineConfig


@takes_engine
def consumer(
    engine: EngineConfig,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    pool: options.Pool = None,
    lane: Annotated[list[Lane] | None, typer.Option(help="Lane to serve; repeat it. Default: all.")] = None,
    lease: options.Lease = 30.0,
    grace: options.Grace = 30.0,
    log_retention: options.LogRetention = 24 * 60 * 60,
    served_model_name: options.ServedModelNames = None,
    lane_policy: service_options.LanePolicies = None,
    tenant_weight: service_options.TenantWeights = None,
    blobs: service_options.Blobs = None,
    quarantine_after: service_options.QuarantineAfter = service_options.QUARANTINE_AFTER,
    poison_deaths: service_options.PoisonDeaths = service_options.POISON_DEATHS,
    ready_file: options.ReadyFile = None,
) -> None:
    """Pull requests from the queue and answer them."""
    # Brings in what loads models and tokenizers; the other commands shall not wait for that.
    from headrace.consumer.service import run_consumer

    environment = read_environment()
    check_place(ready_file)
    names = options.served_names(served_model_name) or served_names(engine.model)
    settings = ConsumerSettings(
        broker=options.broker_url(broker, broker_option, environment),
        prefix=options.prefix(prefix, environment),
        pool=options.pool(pool, environment),
        lanes=tuple(lane or Lane),
        lease_ms=round(lease * 1000),
        grace_s=grace,
        log_retention_s=log_retention,
        engine=engine,
        model=names[0] if names else None,
        aliases=names[1:],
        queue=service_options.lane_policies(lane_policy),
        order=OrderSettings(tenant_weights=service_options.tenant_weights(tenant_weight)),
        blobs=service_options.blob_store(blobs, environment),
        watchdog=WatchdogSettings(quarantine_after=quarantine_after, poison_deaths=poison_deaths),
        ready_file=ready_file,
    )
    raise typer.Exit(run_service(run_consumer(settings)))
