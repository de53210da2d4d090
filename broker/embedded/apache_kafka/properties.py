"""The settings of one node, as lines of a properties file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.embedded.folder import LOOPBACK

SMALL_NODE_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a node listens on loopback: to clients and other brokers, and to the controllers' quorum."""

    clients: int
    quorum: int


def node_properties(
    number: int, ports: Sequence[Ports], data: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    """Settings of node `number` (from 1) of a cluster of `len(ports)` nodes. `extra` overrules."""
    own = ports[number - 1]
    voters = (f"{index}@{LOOPBACK}:{each.quorum}" for index, each in enumerate(ports, start=1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"PLAINTEXT://{LOOPBACK}:{own.clients},CONTROLLER://{LOOPBACK}:{own.quorum}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{own.clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        **_replication(len(ports)),
        **_sessions(len(ports)),
        **_behaviour(),
        **extra,
    }


def _replication(nodes: int) -> dict[str, str]:
    """With three nodes, one may die and nothing that was acknowledged is lost."""
    factor, in_sync = str(min(nodes, 3)), str(min(nodes, 2))
    few = str(SMALL_NODE_PARTITIONS)
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": factor,
        "offsets.topic.num.partitions": few,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": few,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
        "unclean.leader.election.enable": "false",
    }


def _sessions(nodes: int) -> dict[str, str]:
    """A node that was killed comes back only when its old session is over. A single one leaves nobody to
    take over, so a short session costs nothing."""
    return {
        "broker.session.timeout.ms": "2000" if nodes == 1 else "6000",
        "broker.heartbeat.interval.ms": "500" if nodes == 1 else "1000",
    }


def _behaviour() -> dict[str, str]:
    return {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",  # who comes first need not wait for others
        "group.min.session.timeout.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),  # the default would take a third of a small heap
        "offsets.retention.minutes": str(365 * 24 * 60),  # a service that was off for a week finds its place
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """In Java's format: a backslash is an escape there, and what is not ASCII is escaped."""
    lines = (f"{name}={_escape(value)}\n" for name, value in properties.items())
    path.write_text("".join(lines), encoding="ascii")


def _escape(value: str) -> str:
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in units)
