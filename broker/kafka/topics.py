"""Our topics: which there are, with which settings, made at their first use and checked where they exist.

    requests.<lane>     no time limit; trimmed by `delete_records` below the commit
    events.<lane>       beside it, partition by partition: the logs of its requests
    retry.<delay>.<lane>  beside it, too: deliveries that wait
    results, reply.*    output lines; one partition each, so that their lines have one order and a reader's
                        whole cursor is one number. The lines of many consumers fit it easily.
    dlq                 dead letters, one partition likewise
    control             compacted: cancel marks, paused lanes, registry, discarded letters

Time stamps are the broker's (LogAppendTime): publishers' clocks are not believed, and a search by time finds
what was appended since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.broker.errors import BrokerRefused, ReplyNotAllowed
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.places import delay_of, lane_of
from headrace.broker.kafka.topic_maker import TopicMaker, TopicPlan
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.broker.names import POOL, Names

logger = logging.getLogger(__name__)

_OVERHEAD = 64 << 10  # bytes of a batch around its record
_LISTED_S = 1.0
_REFUSED_S = 5.0
_LEADER_S = 10.0  # longer than a leader takes to move
_SEEN_S = 60.0  # a look so long ago tells nothing of the time since


@dataclass(frozen=True, slots=True)
class LaneTopics:
    """The topics of one lane in one pool. All have `partitions` partitions."""

    lane: Lane
    pool: str
    requests: str
    events: str
    delayed: tuple[str, ...]  # of all lengths: also of former settings, where something may wait still
    partitions: int


def group_of(names: Names, pool: str = DEFAULT_POOL) -> str:
    """The consumer group of a pool. Each has its own, so that a rebalance in one moves nothing in another."""
    return f"{names.group}.{pool}" if pool else names.group


class Topics:
    """Makes and checks topics. What was seen once is not looked at again, unless it is gone."""

    def __init__(self, clients: Clients, names: Names) -> None:
        self._names, self._settings = names, clients.settings
        self._maker = TopicMaker(clients)
        self._lanes: dict[tuple[Lane, str], LaneTopics] = {}
        self._plain: set[str] = set()
        self._lock = asyncio.Lock()
        self._listed: dict[str, int] = {}
        self._listed_until = 0.0
        self._writable: set[str] = set()
        self._missing: set[str] = set()
        self._listing = asyncio.Lock()
        self._refused: dict[str, tuple[float, str]] = {}
        self._leaderless: dict[str, tuple[float, float]] = {}  # first and last seen so

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
        there, start = await self._maker.there(None), f"{self._names.request_base}."
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
                TopicPlan(names.results, 1, self._dropped_after(self._settings.results_ms)),
                TopicPlan(names.dead_letters, 1, self._kept()),
                TopicPlan(names.control, 1, {**self._kept(), "cleanup.policy": "compact"}),
            ]
        )

    async def reply(self, topic: str) -> None:
        """A reply topic, made at its first use. Raises ReplyNotAllowed for a name that is not allowed."""
        if not self._names.reply_allowed(topic):
            raise ReplyNotAllowed(f"the reply topic {topic[:200]!r} is not allowed; {self._names.reply_rule}")
        await self._plain_topics([self._reply_plan(topic)])

    async def reply_to(self, topic: str) -> None:
        """The same, for who writes to it. Raises BrokerRefused where we may not, or nobody leads it."""
        await self.reply(topic)
        if topic not in self._writable:
            async with self._lock:
                await self._check_writable(topic)

    def doubt(self, topics: Iterable[str]) -> None:
        """Something could not be written to these, which may have been deleted: they are looked at again, and
        made again, before their next use."""
        names = set(topics)
        self._plain -= names
        self._writable -= names

    async def again(self, topics: Iterable[str]) -> dict[str, str]:
        """Makes those of them anew that were deleted; answers why, for each that cannot be had any more, or
        takes nothing from us any more."""
        topics = set(topics)
        await self._delays_again(topics)
        shared = {self._names.results, self._names.dead_letters}
        wanted = [name for name in topics if name in shared or self._names.reply_allowed(name)]
        there = await self._maker.there(wanted) if wanted else {}
        self.doubt(name for name in wanted if name not in there)
        self._writable.difference_update(wanted)
        refused = {}
        for name in wanted:
            try:
                await (self.shared() if name in shared else self.reply_to(name))
            except BrokerRefused as error:
                refused[name] = str(error)
        return refused

    async def _delays_again(self, names: Collection[str]) -> None:
        """A retry that waits for its topic would keep its neighbours waiting, too, and for ever."""
        plans = [
            plan
            for lane in self._lanes.values()
            for plan in self._lane_plans(lane)
            if plan.name in lane.delayed and plan.name in names
        ]
        there = await self._maker.there([plan.name for plan in plans]) if plans else {}
        missing = [plan for plan in plans if plan.name not in there]
        if missing:
            logger.error("%s was deleted, and is made anew", ", ".join(plan.name for plan in missing))
            await self._maker.make(missing)

    async def _check_writable(self, topic: str) -> None:
        plans = [self._reply_plan(topic)]
        self._repeat_refusal(plans)
        try:
            if await self._maker.check_writable(topic):
                self._writable.add(topic)
                self._leaderless.pop(topic, None)
            else:
                self._wait_for_leader(topic)
        except BrokerRefused as error:
            self._remember_refusal(plans, str(error))
            raise

    def _wait_for_leader(self, topic: str) -> None:
        """Raises BrokerRefused where none has led it for long: its reader may have made it with one copy, on
        a node that is gone, and all that is settled together with its lines would wait."""
        now = time.monotonic()
        self._leaderless = {n: known for n, known in self._leaderless.items() if now - known[1] < _SEEN_S}
        first, _ = self._leaderless.get(topic, (now, now))
        self._leaderless[topic] = first, now
        if now - first > _LEADER_S:
            raise BrokerRefused(f"no node has led the topic {topic} for {now - first:.0f} s")

    def _reply_plan(self, topic: str) -> TopicPlan:
        return TopicPlan(topic, 1, self._dropped_after(self._settings.reply_ms))

    async def _plain_topics(self, plans: Sequence[TopicPlan]) -> None:
        if all(plan.name in self._plain for plan in plans):
            return
        async with self._lock:  # of many who need a topic at once, the first one looks
            missing = [plan for plan in plans if plan.name not in self._plain]
            self._repeat_refusal(missing)
            try:
                await self._maker.make(missing)
            except BrokerRefused as error:
                self._remember_refusal(missing, str(error))
                raise
            self._plain.update(plan.name for plan in missing)

    def _remember_refusal(self, plans: Sequence[TopicPlan], why: str) -> None:
        """For the requests that name the same topic in the next moments: a look takes the cluster three
        questions, and all other looks wait for it."""
        now = time.monotonic()
        self._refused = {name: known for name, known in self._refused.items() if now < known[0]}
        self._refused |= dict.fromkeys((plan.name for plan in plans), (now + _REFUSED_S, why))

    def _repeat_refusal(self, plans: Sequence[TopicPlan]) -> None:
        for plan in plans:
            until, why = self._refused.get(plan.name, (0.0, ""))
            if time.monotonic() < until:
                raise BrokerRefused(why)

    async def weaknesses(self) -> list[str]:
        """What this cluster promises less than it could."""
        if await self._maker.copies() < 3:
            return ["each topic has fewer than three replicas: a lost disk loses what was accepted"]
        return []

    async def _make_lanes(self, lanes: Sequence[Lane], pool: str) -> None:
        if not lanes:
            return
        if pool != DEFAULT_POOL and not POOL.fullmatch(pool):
            raise BrokerRefused(f"{pool[:80]!r} is no name of a pool: use letters, digits, `-` and `_`")
        there = await self._maker.there(None)
        made = [self._planned(lane, pool, there) for lane in lanes]
        await self._maker.make([plan for topics in made for plan in self._lane_plans(topics)])
        self._lanes |= {(topics.lane, pool): topics for topics in made}

    def _planned(self, lane: Lane, pool: str, there: Mapping[str, int]) -> LaneTopics:
        names = self._names
        ours = [names.delayed(delay.name, lane, pool) for delay in self._settings.delays]
        others = [topic for topic in there if (found := delay_of(names, topic)) and found[1:] == (lane, pool)]
        requests = names.requests(lane, pool)
        partitions = there.get(requests, self._settings.partitions)
        delayed = tuple(dict.fromkeys([*ours, *others]))
        return LaneTopics(lane, pool, requests, names.events(lane, pool), delayed, partitions)

    def _lane_plans(self, topics: LaneTopics) -> list[TopicPlan]:
        kept, partitions = self._kept(), topics.partitions
        return [
            TopicPlan(topics.events, partitions, self._dropped_after(self._settings.log_ms)),
            *(TopicPlan(name, partitions, kept) for name in topics.delayed),
            TopicPlan(topics.requests, partitions, kept),
        ]

    async def _there_lately(self) -> dict[str, int]:
        """The same, as it was moments ago. What this connection made since is known all the same."""
        async with self._listing:
            if time.monotonic() >= self._listed_until:
                self._listed = await self._maker.there(None)
                self._listed_until = time.monotonic() + _LISTED_S
                self._forget_missing()
        made = {topics.requests: topics.partitions for topics in self._lanes.values()}
        return {**self._listed, **made}

    def _forget_missing(self) -> None:
        """Lanes that somebody deleted, with a pool that is no more: each search among them would fail. They
        are missing twice: of one that was just made, a node may not have heard yet."""
        missing = {topics.requests for topics in self._lanes.values()} - self._listed.keys()
        gone, self._missing = missing & self._missing, missing
        self._lanes = {key: topics for key, topics in self._lanes.items() if topics.requests not in gone}

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
