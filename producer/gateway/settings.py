"""Settings of the gateway, validated once and frozen."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from headrace.broker.blobs import LIMIT, THRESHOLD
from headrace.broker.bounds import LONGEST_GRACE_S
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.broker.names import POOL
from headrace.broker.queue_policy import QueuePolicy
from headrace.producer.gateway.limits import GatewayLimits

MIB = 1 << 20


class GatewaySettings(BaseModel):
    """One gateway process.

    `broker`: URL of the queue, kept out of logs since it may hold a password. `pool`: where requests go
    whose model says nothing else (see `routes`). `port` 0: any free one.
    `limits` bound what is in flight through this gateway; of `queue`, the policies of the lanes, the gateway
    keeps the sizes. `blobs`: URL (likewise) of the store for bodies of more than `blob_threshold` and up to
    `blob_limit` bytes (None: all bodies travel in their messages).
    `max_message_bytes`: longest message taken in, where there is no blob store; a longer one is refused
    before it is read. gRPC's own default of 4 MiB is too short for a line of the batch format.
    `keepalive_s`: how often an idle connection is probed. `min_ping_interval_s`: how often clients may probe
    us; gRPC's default of 300 s hangs up on clients that ping during a long prefill.
    `max_connection_age_s`: connections older than this are asked to reconnect, so that load balancers can
    spread them anew (None: never); their streams may go on for `max_connection_grace_s`.
    `drain_grace_s`: how long streams may go on after SIGTERM. `ready_file`: where to write endpoint and pid
    once the gateway serves.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    broker: SecretStr
    prefix: str = "headrace"
    pool: str = DEFAULT_POOL
    limits: GatewayLimits = GatewayLimits()
    queue: dict[Lane, QueuePolicy] = {}
    blobs: SecretStr | None = None
    blob_threshold: int = Field(default=THRESHOLD, ge=0)
    blob_limit: int = Field(default=LIMIT, ge=1)
    host: str = "127.0.0.1"
    port: int = Field(default=50051, ge=0, le=65535)
    max_message_bytes: int = Field(default=9 * MIB, ge=64 * 1024)
    keepalive_s: float = Field(default=60.0, gt=0)
    min_ping_interval_s: float = Field(default=10.0, gt=0)
    max_connection_age_s: float | None = Field(default=None, gt=0)
    max_connection_grace_s: float = Field(default=600.0, gt=0)
    reflection: bool = True
    health_interval_s: float = Field(default=1.0, gt=0)
    drain_grace_s: float = Field(default=20.0, ge=0, le=LONGEST_GRACE_S)
    ready_file: Path | None = None

    @field_validator("pool")
    @classmethod
    def _pool_name(cls, pool: str) -> str:
        if pool and POOL.fullmatch(pool) is None:
            raise ValueError(f"{pool[:80]!r} is no name for a pool; use 1 to 64 letters, digits, '-' and '_'")
        return pool

    @property
    def longest_message(self) -> int:
        """Bytes; with a blob store, a body of its limit fits, and the fields around it."""
        if self.blobs is None:
            return self.max_message_bytes
        return max(self.max_message_bytes, self.blob_limit + 64 * 1024)

    def channel_options(self) -> list[tuple[str, int]]:
        """Options of the gRPC core, by their published names."""
        options = [
            # A port that is taken must be an error, not a silent share of its connections.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self.longest_message),
            # What the log holds must reach its readers; how long a message they take is for them to say.
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(self.min_ping_interval_s)),
        ]
        if self.max_connection_age_s is not None:
            options.append(("grpc.max_connection_age_ms", _ms(self.max_connection_age_s)))
            options.append(("grpc.max_connection_age_grace_ms", _ms(self.max_connection_grace_s)))
        return options


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
