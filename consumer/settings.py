"""Settings of one consumer, validated once and frozen. Nothing here reads the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from headrace.broker.message import Lane
from headrace.gpu_engine.config import EngineConfig


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
    `quarantine_after`: deaths without a token after which a request is tried alone; `poison_deaths`:
    such deaths alone in the engine after which it is dead-lettered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress_s: float = Field(default=60.0, gt=0)
    load_s: float = Field(default=1800.0, gt=0)
    max_deaths: int = Field(default=3, ge=1)
    window_s: float = Field(default=60.0, gt=0)
    quarantine_after: int = Field(default=2, ge=1)
    poison_deaths: int = Field(default=3, ge=1)


class ConsumerSettings(BaseModel):
    """One consumer and its engine.

    `broker` is a URL that `broker.connect` takes, `prefix` the installation's. `model` is the name that
    clients see (None: the engine's own), `aliases` further names that requests may use. `lease_ms`: how
    long after a crash its requests go to others. `grace_s`: how long a drain may finish requests before
    it hands them back. `max_in_flight` None: from the engine's batch size, see `window`.
    `log_retention_s`: how long a finished request can still be watched, and its id is known. `ready_file`
    is written once all is up, and whenever the engine's pid changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    broker: str
    prefix: str = "headrace"
    lanes: tuple[Lane, ...] = Field(default=tuple(Lane), min_length=1)
    lease_ms: int = Field(default=30_000, ge=100)
    grace_s: float = Field(default=30.0, ge=0)
    engine: EngineConfig = EngineConfig()
    model: str | None = None
    aliases: tuple[str, ...] = ()
    max_in_flight: int | None = Field(default=None, ge=1)
    log_retention_s: float = Field(default=24 * 60 * 60, ge=1)
    ready_file: Path | None = None
    publish: PublishSettings = PublishSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
