"""Makes topics as they are planned, and checks those that stand already.

A topic that stands there with other settings was made by something else; it is refused, since it would lose
what was accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kafka.errors as ke
from kafka.admin import ACLOperation, ConfigResource, ConfigResourceType, KafkaAdminClient

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.clients import Clients

_READY_S = 15.0
_FREE = ("retention.ms", "max.message.bytes")  # an operator may choose other numbers


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it ought to be. `must`: the settings that we rely on."""

    name: str
    partitions: int
    must: Mapping[str, str]


class TopicMaker:
    """Asks and changes the cluster, and remembers nothing but its number of copies."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._replication = 0

    async def make(self, plans: Sequence[TopicPlan]) -> None:
        """What is missing of them; raises BrokerRefused where one stands there as something else."""
        if not plans:
            return
        there = await self.there([plan.name for plan in plans])
        missing = [plan for plan in plans if plan.name not in there]
        if missing:
            await self._create(missing)
        await self._check([plan for plan in plans if plan.name in there])

    async def _create(self, plans: Sequence[TopicPlan]) -> None:
        copies = await self.copies()
        made = {
            plan.name: {
                "num_partitions": plan.partitions,
                "replication_factor": copies,
                "configs": {**plan.must, "min.insync.replicas": "2" if copies >= 3 else "1"},
            }
            for plan in plans
        }
        answer = await self._clients.admin(lambda admin: admin.create_topics(made, raise_errors=False))
        there_now = []
        for topic in answer["topics"]:
            error = ke.for_code(topic["error_code"])
            if error is ke.TopicAlreadyExistsError:  # another process was quicker
                there_now.append(topic["name"])
            elif error is not ke.NoError:
                raise self._not_made(topic["name"], error, topic.get("error_message") or error.__name__)
        await self._until_ready([plan.name for plan in plans])
        await self._check([plan for plan in plans if plan.name in there_now])

    def _not_made(self, topic: str, error: type[ke.KafkaError], why: str) -> BrokerError:
        """A node that starts, or is too busy for its heartbeats, is there but "fenced": that passes."""
        servers = self._clients.servers
        if error.retriable or "fenced" in why:
            return BrokerUnavailable(f"{servers} does not create the topic {topic} at the moment: {why}")
        return BrokerRefused(f"{servers} does not create the topic {topic}: {why}")

    async def _until_ready(self, names: Sequence[str]) -> None:
        """A new topic can be used once each partition has a leader."""
        pause_s = 0.005
        try:
            async with asyncio.timeout(_READY_S):
                while not all(map(_is_ready, await self._described(names))):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.2)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self._clients.servers} made topics, but no node leads them") from error

    async def copies(self) -> int:
        """How many nodes keep each partition."""
        if not self._replication:
            cluster = await self._clients.admin(lambda admin: admin.describe_cluster())
            nodes = len(cluster["brokers"])
            if not nodes:
                raise BrokerUnavailable(f"{self._clients.servers} has no node that serves at the moment")
            wanted = self._clients.settings.replication or (3 if nodes >= 3 else 1)
            if wanted > nodes:
                raise BrokerRefused(f"replication={wanted} needs as many nodes, and the cluster has {nodes}")
            self._replication = wanted
        return self._replication

    async def there(self, names: Sequence[str] | None) -> dict[str, int]:
        """Those of these topics, or of all in the cluster, that exist, with their numbers of partitions."""
        topics = await self._clients.admin(lambda admin: admin.describe_topics(names))
        return {topic["name"]: len(topic["partitions"]) for topic in topics if not topic["error_code"]}

    async def check_writable(self, topic: str) -> bool:
        """Raises BrokerRefused where the cluster's ACLs do not let us write there. False: nobody leads it."""
        (described,) = await self._described([topic])
        allowed = described.get("authorized_operations")  # nothing where the node does not say
        if allowed and ACLOperation.WRITE.name not in allowed:
            servers = self._clients.servers
            raise BrokerRefused(f"{servers} does not allow this user to write to {topic}; check its ACLs")
        return _is_ready(described)

    async def _check(self, plans: Sequence[TopicPlan]) -> None:
        """Whether topics that were there already are ours, as far as it matters."""
        if not plans:
            return
        for plan, topic in zip(plans, await self._described([plan.name for plan in plans]), strict=True):
            count = len(topic["partitions"])
            if count != plan.partitions:
                raise BrokerRefused(
                    f"the topic {plan.name} has {count} partitions and needs {plan.partitions}, as many as "
                    "the topic it stands beside; partition counts change only by a migration"
                )
        settings = await self._clients.admin(lambda admin: _describe_configs(admin, plans))
        for plan in plans:
            for name, value in plan.must.items():
                stands = settings[plan.name].get(name, "")
                if not _same(name, stands, value):
                    raise BrokerRefused(
                        f"the topic {plan.name} was not made by Headrace, or was changed: it has "
                        f"{name}={stands} and needs {name}={value}; change it (kafka-configs --alter), "
                        "or choose another prefix"
                    )

    async def _described(self, names: Sequence[str]) -> list[dict[str, Any]]:
        topics = await self._clients.admin(lambda admin: admin.describe_topics(list(names)))
        by_name = {topic["name"]: topic for topic in topics}
        return [by_name[name] for name in names]


def _same(name: str, stands: str, wanted: str) -> bool:
    """Whether a setting will do. Only "for ever" means what it says."""
    return stands == wanted or (name in _FREE and wanted != "-1")


def _describe_configs(admin: KafkaAdminClient, plans: Sequence[TopicPlan]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, plan.name) for plan in plans]
    described = admin.describe_configs(resources, config_filter="all")["topic"]
    return {
        topic: {name: entry["value"] for name, entry in entries.items()}
        for topic, entries in described.items()
    }


def _is_ready(topic: Mapping[str, Any]) -> bool:
    partitions = topic["partitions"]
    led = all(not p["error_code"] and p["leader_id"] >= 0 for p in partitions)
    return not topic["error_code"] and bool(partitions) and led
