"""The peers: what to install for each, and what it promises about a task whose worker dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.shared.environments import Packages


@dataclass(frozen=True, slots=True)
class Peer:
    """`leases`: what a dead worker held comes back by itself, and is acknowledged only when it is done; `how`
    says in what way."""

    name: str
    packages: Packages
    leases: bool
    how: str
    server: Literal["redis", "rabbitmq"] = "redis"


PEERS = (
    Peer(
        "celery",
        Packages(("celery[redis]", "hiredis"), ("celery", "kombu", "redis")),
        leases=True,
        how="acks_late; comes back after a visibility timeout that nobody renews",
    ),
    Peer(
        "dramatiq",
        Packages(("dramatiq[redis]", "hiredis"), ("dramatiq", "redis")),
        leases=True,
        how="acks late; a worker without heartbeat loses its messages",
    ),
    Peer(
        "arq",
        Packages(("arq", "hiredis", "uvloop"), ("arq", "redis")),
        leases=True,
        how="stays queued until done; an in-progress key that nobody renews",
    ),
    Peer(
        "taskiq",
        Packages(("taskiq", "taskiq-redis", "hiredis", "uvloop"), ("taskiq", "taskiq-redis", "redis")),
        leases=True,
        how="stream broker: acks late; reclaimed after a fixed idle time that nobody renews",
    ),
    Peer(
        "saq",
        Packages(("saq[redis,hiredis]", "typing_extensions", "uvloop"), ("saq", "redis")),
        leases=True,
        how="active list; a job that is stuck is swept back",
    ),
    Peer(
        "streaq",
        Packages(("streaq", "uvloop"), ("streaq", "coredis")),
        leases=True,
        how="streams; leases renewed, acks late",
    ),
    Peer(
        "rq",
        Packages(("rq", "hiredis"), ("rq", "redis")),
        leases=False,
        how="a job whose worker died is marked as failed",
    ),
    Peer(
        "llmq",
        Packages(
            ("aio-pika", "httpx", "pydantic", "python-dotenv", "rich", "PyYAML"),
            ("llmq", "aio-pika"),
            bare=("llmq",),  # it asks for vLLM, which its dummy worker does not use
        ),
        leases=True,
        how="RabbitMQ: what is not acknowledged comes back with the connection's end",
        server="rabbitmq",
    ),
)
