"""The peers: what to install for each, and what it promises about a task whose worker dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Peer:
    """`packages`: for its environment, `shown`: those whose versions are told. `leases`: what a dead worker
    held comes back by itself, and is acknowledged only when it is done; `how` says in what way. `bare`:
    packages that are installed without what they ask for."""

    name: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    leases: bool
    how: str
    bare: tuple[str, ...] = ()
    server: Literal["redis", "rabbitmq"] = "redis"


PEERS = (
    Peer(
        "celery",
        ("celery[redis]", "hiredis"),
        ("celery", "kombu", "redis"),
        leases=True,
        how="acks_late; comes back after a visibility timeout that nobody renews",
    ),
    Peer(
        "dramatiq",
        ("dramatiq[redis]", "hiredis"),
        ("dramatiq", "redis"),
        leases=True,
        how="acks late; a worker without heartbeat loses its messages",
    ),
    Peer(
        "arq",
        ("arq", "hiredis", "uvloop"),
        ("arq", "redis"),
        leases=True,
        how="stays queued until done; an in-progress key that nobody renews",
    ),
    Peer(
        "taskiq",
        ("taskiq", "taskiq-redis", "hiredis", "uvloop"),
        ("taskiq", "taskiq-redis", "redis"),
        leases=True,
        how="stream broker: acks late; reclaimed after a fixed idle time that nobody renews",
    ),
    Peer(
        "saq",
        ("saq[redis,hiredis]", "typing_extensions", "uvloop"),
        ("saq", "redis"),
        leases=True,
        how="active list; a job that is stuck is swept back",
    ),
    Peer(
        "streaq",
        ("streaq", "uvloop"),
        ("streaq", "coredis"),
        leases=True,
        how="streams; leases renewed, acks late",
    ),
    Peer(
        "rq",
        ("rq", "hiredis"),
        ("rq", "redis"),
        leases=False,
        how="a job whose worker died is marked as failed",
    ),
    Peer(
        "llmq",
        ("aio-pika", "httpx", "pydantic", "python-dotenv", "rich", "PyYAML"),
        ("llmq", "aio-pika"),
        leases=True,
        how="RabbitMQ: what is not acknowledged comes back with the connection's end",
        bare=("llmq",),  # it asks for vLLM, which its dummy worker does not use
        server="rabbitmq",
    ),
)
