"""Topics: what is asked of the cluster, and how often."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.admin import ConfigResource

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka import topics as topics_module
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.items import Item
from headrace.broker.kafka.settings import KafkaSettings
from headrace.broker.kafka.topics import Topics
from headrace.broker.kafka.transactions import Outcome
from headrace.broker.message import Lane
from headrace.broker.names import Names
from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig


class OneNode:
    """A cluster as the admin client shows it; counts the questions."""

    def __init__(self, **topics: int) -> None:
        self.partitions = {name.replace("_", "."): count for name, count in topics.items()}
        self.made: list[str] = []
        self.asked = 0

    async def admin(self, call: Callable[[Any], Any]) -> Any:
        self.asked += 1
        await asyncio.sleep(0)  # others come to their turn meanwhile, as they do at a real cluster
        return call(self)

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [1]}

    def describe_topics(self, names: list[str] | None) -> list[dict[str, Any]]:
        wanted = list(self.partitions) if names is None else names
        return [
            {
                "name": name,
                "error_code": 0 if name in self.partitions else 3,
                "partitions": [{"error_code": 0, "leader_id": 1}] * self.partitions.get(name, 0),
            }
            for name in wanted
        ]

    def describe_configs(self, resources: list[ConfigResource], config_filter: str) -> dict[str, Any]:
        """All of them are as they must be."""
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        kept |= {"message.timestamp.type": "LogAppendTime", "unclean.leader.election.enable": "false"}
        return {
            "topic": {r.name: {name: {"value": value} for name, value in kept.items()} for r in resources}
        }

    def create_topics(self, plans: dict[str, dict[str, Any]], raise_errors: bool) -> dict[str, Any]:
        self.made += plans
        self.partitions |= {name: plan["num_partitions"] for name, plan in plans.items()}
        return {"topics": [{"name": name, "error_code": 0} for name in plans]}


def topics_of(node: OneNode) -> Topics:
    clients = SimpleNamespace(
        settings=KafkaSettings(servers=("h:1",)), servers="kafka://h:1", admin=node.admin
    )
    return Topics(cast(Clients, clients), Names())


async def test_of_many_who_need_a_reply_topic_at_once_one_asks_the_cluster() -> None:
    node = OneNode()
    topics = topics_of(node)
    await topics.reply("headrace.reply.other")
    asked_by_one = node.asked
    await asyncio.gather(*(topics.reply("headrace.reply.mine") for _ in range(50)))
    assert node.made == ["headrace.reply.other", "headrace.reply.mine"]
    assert node.asked <= 2 * asked_by_one


async def test_a_reply_topic_that_is_something_else_is_looked_at_once_for_all_who_name_it() -> None:
    node = OneNode(headrace_reply_wrong=3)
    topics = topics_of(node)
    answers = await asyncio.gather(
        *(topics.reply("headrace.reply.wrong") for _ in range(50)), return_exceptions=True
    )
    assert all(isinstance(answer, BrokerRefused) for answer in answers)
    assert "has 3 partitions and needs 1" in str(answers[-1])
    assert node.asked < 5


async def test_a_refusal_of_one_reply_topic_leaves_the_others_alone() -> None:
    topics = topics_of(OneNode(headrace_reply_wrong=3))
    with pytest.raises(BrokerRefused):
        await topics.reply("headrace.reply.wrong")
    await topics.reply("headrace.reply.right")


@pytest.mark.parametrize(
    ("code", "why", "kind"),
    [
        (
            38,
            "Unable to replicate the partition 1 time(s): All brokers are currently fenced.",
            BrokerUnavailable,
        ),
        (41, "This is not the correct controller for this cluster.", BrokerUnavailable),
        (44, "Request parameters do not satisfy the configured policy.", BrokerRefused),
    ],
)
async def test_a_node_that_is_only_starting_is_no_refusal(
    code: int, why: str, kind: type[BrokerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = OneNode()
    answer = {"topics": [{"name": "headrace.results", "error_code": code, "error_message": why}]}
    monkeypatch.setattr(node, "create_topics", lambda *_, **__: answer)
    with pytest.raises(kind, match=re.escape(why)):
        await topics_of(node).shared()


async def test_a_cluster_whose_nodes_all_start_just_now_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = OneNode()
    monkeypatch.setattr(node, "describe_cluster", lambda: {"brokers": []})
    with pytest.raises(BrokerUnavailable, match="no node that serves"):
        await topics_of(node).shared()


async def test_topics_of_delays_that_were_once_set_are_read_on() -> None:
    """What waits there has no other way back."""
    old = "headrace.retry.7m.batch", "headrace.retry.7m.gpu.batch", "headrace.retry.odd.batch"
    node = OneNode()
    node.partitions = {**dict.fromkeys(old, 8), "headrace.requests.batch": 8}
    lane = await topics_of(node).lane(Lane.BATCH)
    assert lane.delayed[-1] == "headrace.retry.7m.batch"
    assert not {*old[1:]} & {*lane.delayed}


async def test_a_delay_topic_that_was_deleted_is_made_again_for_the_retries_that_wait_for_it() -> None:
    node = OneNode()
    topics = topics_of(node)
    name = (await topics.lane(Lane.BATCH)).delayed[0]
    count = node.partitions.pop(name)
    assert await topics.again([name, "headrace.results"]) == {}
    assert node.partitions[name] == count


async def test_so_that_its_retries_hold_up_no_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    node = OneNode()
    topics = topics_of(node)
    lane = await topics.lane(Lane.STANDARD)
    del node.partitions[lane.delayed[0]]

    def commit(records: Sequence[Record], *_: object) -> Outcome:
        return Outcome.COMMITTED if all(r.topic in node.partitions for r in records) else Outcome.ANEW

    async with Rig() as rig:
        monkeypatch.setattr(rig.transactions, "commit", commit)
        rig.settler._parts = replace(rig.settler._parts, topics_again=topics.again)
        rig.take(request(0, "late"), request(1, "neighbour"))
        late = rig.settler.put(Item(rig.tenure, 0, [Record(lane.delayed[0], b"late")]))
        neighbour = rig.settler.put(Item(rig.tenure, 1, []))
        await rig.settler.flushed(1)
        assert late.done()
        assert neighbour.done()
        assert late.result() is neighbour.result() is True


async def test_a_reply_topic_that_nobody_leads_for_long_holds_up_no_settlement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reader made it with one copy, on a node that is gone."""
    monkeypatch.setattr(topics_module, "_LEADER_S", 0.1, raising=False)
    reply, node = "headrace.reply.mine", OneNode(headrace_reply_mine=1)
    topics, describe = topics_of(node), node.describe_topics
    await topics.reply_to(reply)

    def without_leader(names: list[str] | None) -> list[dict[str, Any]]:
        away = [{"error_code": 5, "leader_id": -1}]
        return [each | ({"partitions": away} if each["name"] == reply else {}) for each in describe(names)]

    monkeypatch.setattr(node, "describe_topics", without_leader)

    def commit(records: Sequence[Record], *_: object) -> Outcome:
        return Outcome.ANEW if any(record.topic == reply for record in records) else Outcome.COMMITTED

    async with Rig() as rig:
        monkeypatch.setattr(rig.transactions, "commit", commit)
        rig.settler._parts = replace(rig.settler._parts, topics_again=topics.again)
        rig.take(request(0, "mine"), request(1, "neighbour"))
        mine = rig.settler.put(Item(rig.tenure, 0, [Record(reply, b"line")]))
        neighbour = rig.settler.put(Item(rig.tenure, 1, []))
        await asyncio.sleep(0.05)
        assert not mine.done(), "a leader that moves is waited for"
        await rig.settler.flushed(1)
        assert neighbour.done()
        assert neighbour.result()
        with pytest.raises(BrokerError, match="no node has led"):
            mine.result()
        with pytest.raises(BrokerRefused):  # so that its line goes to the results of all
            await topics.reply_to(reply)
