"""Settings of one consumer, validated once and frozen. Nothing here reads the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from headrace.broker.bounds import LONGEST_GRACE_S, LONGEST_KEPT_S, LONGEST_LEASE_S
from headrace.broker.lanes import PATIENCE
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.broker.names import POOL
from headrace.broker.queue_policy import QueuePolicy
from headrace.gpu_engine.config import EngineConfig

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # of a tenant: shares are sums of quotients by them


class PublishSettings(BaseModel):
    """When tokens that nobody streams go into the log: every `checkpoint_tokens`, or `checkpoint_s` seconds
    after the oldest of them. They bound the work that a killed consumer loses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_tokens: int = Field(default=32, ge=1)
    checkpoint_s: float = Field(default=1.0, gt=0)


class WatchdogSettings(BaseModel):
    """When an engine counts as hung, as sick, and a request as poison.

    `progress_s`: longest step with work to do; `load_s`: longest start. `max_deaths` within `window_s`
    that no single request explains, and no finished request between them: the engine is sick.
    `quarantine_after`: deaths without a token, of engines and of consumers, after which a request is tried
    alone; `poison_deaths`: such deaths alone in the engine after which it is dead-lettered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress_s: float = Field(default=60.0, gt=0)
    load_s: float = Field(default=1800.0, gt=0)
    max_deaths: int = Field(default=3, ge=1)
    window_s: float = Field(default=60.0, gt=0)
    quarantine_after: int = Field(default=2, ge=1)
    poison_deaths: int = Field(default=3, ge=1)


class WindowSettings(BaseModel):
    """How much a consumer holds, see `window`. `times`: of its slots, running and waiting; `max_bytes`: of
    the bodies that wait. `interactive_reserve`: interactive requests beyond all that (None: a quarter of the
    slots); `interactive_poll_s`: how often it looks for them while all is full and slots come and go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    times: int = Field(default=4, ge=1)
    max_bytes: int = Field(default=32 << 20, ge=1)
    interactive_reserve: int | None = Field(default=None, ge=0)
    interactive_poll_s: float = Field(default=0.02, gt=0)


class OrderSettings(BaseModel):
    """Who comes next in the waiting room, see `waiting_room`. `patience`: how often a lane may be passed
    over; `tenant_weights`: shares of the tenants (default 1 each); `lead_tokens`: how far a tenant may run
    ahead of its share by the deadlines of its requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience: int = Field(default=PATIENCE, ge=1)
    tenant_weights: dict[str, Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]] = {}
    lead_tokens: float = Field(default=20_000, ge=0, allow_inf_nan=False)


class RetrySettings(BaseModel):
    """Pauses of a request that is retried: up to `first_s`, doubled each time, up to `longest_s`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_s: float = Field(default=1.0, gt=0)
    longest_s: float = Field(default=60.0, gt=0)


class ConsumerSettings(BaseModel):
    """One consumer and its engine.

    `broker` is a URL that `broker.connect` takes, `prefix` the installation's, `pool` the consumers that
    serve the same models. `model` is the name that clients see (None: the engine's own), `aliases` further
    names that requests may use. `lease_ms`: how long after a crash its requests go to others. `grace_s`: how
    long a drain may finish requests before it hands them back. `max_in_flight`: requests served at a time,
    None: from the engine's batch size, see `window`. `queue`: how long requests of a lane may wait for their
    start, and what then. `blobs`: URL of the store where large bodies lie.
    `log_retention_s`: how long a finished request can still be watched, and its id is known. `ready_file`
    is written once all is up, and whenever the engine's pid changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    broker: str
    prefix: str = "headrace"
    pool: str = DEFAULT_POOL
    lanes: tuple[Lane, ...] = Field(default=tuple(Lane), min_length=1)
    lease_ms: int = Field(default=30_000, ge=100, le=LONGEST_LEASE_S * 1000)
    grace_s: float = Field(default=30.0, ge=0, le=LONGEST_GRACE_S)
    engine: EngineConfig = EngineConfig()
    model: str | None = None
    aliases: tuple[str, ...] = ()
    max_in_flight: int | None = Field(default=None, ge=1)
    window: WindowSettings = WindowSettings()
    order: OrderSettings = OrderSettings()
    queue: dict[Lane, QueuePolicy] = {}
    retry: RetrySettings = RetrySettings()
    blobs: str | None = None
    log_retention_s: float = Field(default=24 * 60 * 60, ge=1, le=LONGEST_KEPT_S)
    ready_file: Path | None = None
    publish: PublishSettings = PublishSettings()
    watchdog: WatchdogSettings = WatchdogSettings()

    @field_validator("pool")
    @classmethod
    def _pool_name(cls, pool: str) -> str:
        if pool and POOL.fullmatch(pool) is None:
            raise ValueError(f"{pool[:80]!r} is no name for a pool; use 1 to 64 letters, digits, '-' and '_'")
        return pool
