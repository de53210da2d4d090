"""Our topics: which there are, with which settings, made at their first use and checked where they exist.

    requests.<lane>     no time limit; trimmed by `delete_records` below the commit
    events.<lane>       beside it, partition by partition: the logs of its requests
    retry.<delay>.<lane>  beside it, too: deliveries that wait
    results, reply.*    output lines; one partition each, so that their lines have one order and a reader's
                        whole cursor is one number. The lines of many consumers fit it easily.
    dlq                 dead letters, one partition likewise
    control             compacted: cancel marks, paused lanes, registry, discarded letters

Time stamps are the broker's (LogAppendTime): publishers' clocks are not believed, and a search by time finds
what was appended since. A topic that stands there with other settings was made by something else; it is
refused, since it would lose what was accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kafka.errors as ke
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from headrace.broker.errors import BrokerRefused, BrokerUnavailable, ReplyNotAllowed
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.places import lane_of
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.broker.names import POOL, Names

_READY_S = 15.0
_LISTED_S = 1.0


@dataclass(frozen=True, slots=True)
class LaneTopics:
    """The topics of one lane in one pool. All have `partitions` partitions."""

    lane: Lane
    pool: str
    requests: str
    events: str
    delayed: tuple[str, ...]  # in the order of `KafkaSettings.delays`
    partitions: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """A topic as it ought to be. `must`: the settings that we rely on."""

    name: str
    partitions: int
    must: Mapping[str, str]


def group_of(names: Names, pool: str = DEFAULT_POOL) -> str:
    """The consumer group of a pool. Each has its own, so that a rebalance in one moves nothing in another."""
    return f"{names.group}.{pool}" if pool else names.group


class Topics:
    """Makes and checks topics. What was seen once is not looked at again."""

    def __init__(self, clients: Clients, names: Names) -> None:
        self._clients, self._names, self._settings = clients, names, clients.settings
        self._lanes: dict[tuple[Lane, str], LaneTopics] = {}
        self._plain: set[str] = set()
        self._lock = asyncio.Lock()
        self._listed: dict[str, int] = {}
        self._listed_until = 0.0
        self.replication = 0

    # --------------------------------------------------------------------------------------------- lanes

    async def lanes(self, lanes: Iterable[Lane], pool: str = DEFAULT_POOL) -> list[LaneTopics]:
        """The topics of these lanes, made where they are missing."""
        wanted = list(lanes)
        if not all((lane, pool) in self._lanes for lane in wanted):
            async with self._lock:
                await self._make_lanes([lane for lane in wanted if (lane, pool) not in self._lanes], pool)
        return [self._lanes[lane, pool] for lane in wanted]

    async def lane(self, lane: Lane, pool: str = DEFAULT_POOL) -> LaneTopics:
        return (await self.lanes([lane], pool))[0]

    def seen(self, lane: Lane, pool: str = DEFAULT_POOL) -> LaneTopics | None:
        """Those of a lane, if they were looked at before."""
        return self._lanes.get((lane, pool))

    async def existing(self, pools: Iterable[str] | None = None) -> list[LaneTopics]:
        """All lanes that have topics, of all pools or of these."""
        there = await self._there_lately()
        found = [place for name in there if (place := lane_of(self._names, name)) is not None]
        wanted = None if pools is None else set(pools)
        return [
            await self.lane(lane, pool) for lane, pool in sorted(found) if wanted is None or pool in wanted
        ]

    async def strays(self) -> dict[str, int]:
        """Topics that stand among the request topics and belong to no lane, with their numbers of
        partitions."""
        there, start = await self._there(None), f"{self._names.request_base}."
        return {
            name: count
            for name, count in there.items()
            if name.startswith(start) and lane_of(self._names, name) is None
        }

    # ------------------------------------------------------------------------------------- other topics

    async def shared(self) -> None:
        """Results, dead letters and control, made where they are missing."""
        names = self._names
        await self._plain_topics(
            [
                _Plan(names.results, 1, self._dropped_after(self._settings.results_ms)),
                _Plan(names.dead_letters, 1, self._kept()),
                _Plan(names.control, 1, {**self._kept(), "cleanup.policy": "compact"}),
            ]
        )

    async def reply(self, topic: str) -> None:
        """A reply topic, made at its first use. Raises ReplyNotAllowed for a name that is not allowed."""
        if not self._names.reply_allowed(topic):
            raise ReplyNotAllowed(f"the reply topic {topic[:200]!r} is not allowed; {self._names.reply_rule}")
        await self._plain_topics([_Plan(topic, 1, self._dropped_after(self._settings.reply_ms))])

    async def _plain_topics(self, plans: Sequence[_Plan]) -> None:
        if all(plan.name in self._plain for plan in plans):
            return
        async with self._lock:
            await self._make(plans)
            self._plain.update(plan.name for plan in plans)

    async def weaknesses(self) -> list[str]:
        """What this cluster promises less than it could."""
        if await self._copies() < 3:
            return ["each topic has fewer than three replicas: a lost disk loses what was accepted"]
        return []

    # -------------------------------------------------------------------------------------------- making

    async def _make_lanes(self, lanes: Sequence[Lane], pool: str) -> None:
        if not lanes:
            return
        if pool != DEFAULT_POOL and not POOL.fullmatch(pool):
            raise BrokerRefused(f"{pool[:80]!r} is no name of a pool: use letters, digits, `-` and `_`")
        there = await self._there([self._names.requests(lane, pool) for lane in lanes])
        counts = {
            lane: there.get(self._names.requests(lane, pool), self._settings.partitions) for lane in lanes
        }
        await self._make([plan for lane in lanes for plan in self._lane_plans(lane, pool, counts[lane])])
        for lane in lanes:
            self._lanes[lane, pool] = LaneTopics(
                lane,
                pool,
                self._names.requests(lane, pool),
                self._names.events(lane, pool),
                tuple(self._names.delayed(d.name, lane, pool) for d in self._settings.delays),
                counts[lane],
            )

    def _lane_plans(self, lane: Lane, pool: str, partitions: int) -> list[_Plan]:
        kept, names = self._kept(), self._names
        delayed = [names.delayed(delay.name, lane, pool) for delay in self._settings.delays]
        return [
            _Plan(names.events(lane, pool), partitions, self._dropped_after(self._settings.log_ms)),
            *(_Plan(name, partitions, kept) for name in delayed),
            _Plan(names.requests(lane, pool), partitions, kept),
        ]

    async def _make(self, plans: Sequence[_Plan]) -> None:
        there = await self._there([plan.name for plan in plans])
        missing = [plan for plan in plans if plan.name not in there]
        if missing:
            await self._create(missing)
        await self._check([plan for plan in plans if plan.name in there])

    async def _create(self, plans: Sequence[_Plan]) -> None:
        copies = await self._copies()
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
                why = topic.get("error_message") or error.__name__
                raise BrokerRefused(
                    f"{self._clients.servers} does not create the topic {topic['name']}: {why}"
                )
        await self._until_ready([plan.name for plan in plans])
        await self._check([plan for plan in plans if plan.name in there_now])

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

    async def _copies(self) -> int:
        """How many nodes keep each partition."""
        if not self.replication:
            cluster = await self._clients.admin(lambda admin: admin.describe_cluster())
            nodes = len(cluster["brokers"])
            wanted = self._settings.replication or (3 if nodes >= 3 else 1)
            if wanted > nodes:
                raise BrokerRefused(f"replication={wanted} needs as many nodes, and the cluster has {nodes}")
            self.replication = wanted
        return self.replication

    # ------------------------------------------------------------------------------------------ checking

    async def _check(self, plans: Sequence[_Plan]) -> None:
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

    async def _there_lately(self) -> dict[str, int]:
        """The same, as it was moments ago. What this connection made since is known all the same."""
        if time.monotonic() >= self._listed_until:
            self._listed, self._listed_until = await self._there(None), time.monotonic() + _LISTED_S
        made = {topics.requests: topics.partitions for topics in self._lanes.values()}
        return {**self._listed, **made}

    async def _there(self, names: Sequence[str] | None) -> dict[str, int]:
        """Those of these topics, or of all that are ours, that exist, with their numbers of partitions."""
        start = f"{self._names.prefix}."
        topics = await self._clients.admin(lambda admin: admin.describe_topics(names))
        return {
            topic["name"]: len(topic["partitions"])
            for topic in topics
            if topic["name"].startswith(start) and not topic["error_code"]
        }

    async def _described(self, names: Sequence[str]) -> list[dict[str, Any]]:
        topics = await self._clients.admin(lambda admin: admin.describe_topics(list(names)))
        by_name = {topic["name"]: topic for topic in topics}
        return [by_name[name] for name in names]

    # ------------------------------------------------------------------------------------------ settings

    def _kept(self) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "message.timestamp.type": "LogAppendTime",
            "unclean.leader.election.enable": "false",
            "max.message.bytes": str(self._settings.max_message_bytes + _OVERHEAD),
        }

    def _dropped_after(self, ms: int) -> dict[str, str]:
        return {**self._kept(), "retention.ms": str(ms)}


_OVERHEAD = 64 << 10  # of a batch around its record
_FREE = ("retention.ms", "max.message.bytes")  # an operator may choose other numbers


def _same(name: str, stands: str, wanted: str) -> bool:
    """Whether a setting will do. Only "for ever" means what it says."""
    return stands == wanted or (name in _FREE and wanted != "-1")


def _describe_configs(admin: KafkaAdminClient, plans: Sequence[_Plan]) -> dict[str, dict[str, str]]:
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
