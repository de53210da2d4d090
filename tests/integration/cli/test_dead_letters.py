"""`headrace dlq`, `lane`, `consumers` and `queue` against a broker with a story."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis

from headrace.broker.connect import connect
from headrace.broker.contract import Broker, DeadLetter, Serves
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.message import Lane, Message
from headrace.broker.names import Names
from headrace.cli.ages import age, parse_age
from headrace.cli.app import execute
from headrace.cli.errors import Mistake

T = TypeVar("T")
LEASE_MS = 30_000
Headrace = Callable[..., str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, server: EmbeddedValkey) -> Names:
    made = Names(f"t{uuid.uuid4().hex[:8]}")
    monkeypatch.setenv("HEADRACE_BROKER", server.url)
    monkeypatch.setenv("HEADRACE_PREFIX", made.prefix)
    monkeypatch.setenv("COLUMNS", "300")
    return made


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Headrace:
    """Runs a command in this process; returns what it printed, after checking its status."""

    def run(*arguments: str, code: int = 0, error: str = "") -> str:
        status = execute(arguments)
        out, err = capsys.readouterr()
        assert (status, error in err) == (code, True), err
        return out

    return run


def with_broker(server: EmbeddedValkey, names: Names, work: Callable[[Broker], Awaitable[T]]) -> T:
    async def run() -> T:
        broker = await connect(server.url, prefix=names.prefix)
        try:
            return await work(broker)
        finally:
            await broker.close()

    return asyncio.run(run())


@pytest.fixture
def letters(server: EmbeddedValkey, names: Names) -> list[str]:
    """Positions of two dead letters: rubbish from outside, and a request that was given up."""

    async def work(broker: Broker) -> list[str]:
        await broker.publish([Message(b'{"custom_id": "a"}', "id-a", Lane.STANDARD, headers={"x": "7"})])
        session = await broker.consume(list(Lane), LEASE_MS)
        dead = [delivery for _ in range(2) for delivery in await session.pull(2, 0)]
        assert [delivery.ref.request_id for delivery in dead] == ["id-a"]
        opened = await session.open(dead[0])
        assert await session.settle(dead[0], opened.epoch, DeadLetter("it kills every engine"))
        await session.close()
        return [letter.position for letter in await broker.dead_letters()]

    with Redis.from_url(server.url) as client:
        client.xadd(names.requests(Lane.BATCH), {"text": b"\xff\xfe\x1b[31m"})
    return with_broker(server, names, work)


def test_the_list_shows_why_and_from_which_lane(headrace: Headrace, letters: list[str]) -> None:
    shown = headrace("dlq", "list")
    rows = [row for row in shown.splitlines() if row.startswith("│")]
    assert ["batch" in rows[0], "standard" in rows[1], len(rows)] == [True, True, 2]
    assert "no field `body`" in rows[0]
    assert "it kills every engine" in rows[1]
    assert '{"custom_id": "a"}' in rows[1]
    assert all(position in shown for position in letters)
    assert len([row for row in headrace("dlq", "list", "--limit", "1").splitlines() if row[0] == "│"]) == 1


def test_the_list_as_json_holds_every_byte(headrace: Headrace, letters: list[str]) -> None:
    rubbish, poison = json.loads(headrace("dlq", "list", "--json"))
    assert [rubbish["position"], poison["position"]] == letters
    assert (poison["lane"], poison["body"]) == ("standard", '{"custom_id": "a"}')
    assert poison["headers"]["x"] == "7"
    assert rubbish["body"] == ""


def test_one_letter_is_shown_whole(headrace: Headrace, letters: list[str]) -> None:
    head, body = headrace("dlq", "show", letters[1]).split("\n\n")
    assert "reason: it kills every engine" in head.splitlines()
    assert "x: 7" in head.splitlines()
    assert body == '{"custom_id": "a"}\n'
    assert json.loads(headrace("dlq", "show", letters[1], "--json"))["position"] == letters[1]
    headrace("dlq", "show", "nowhere/1-1", code=2, error="there is no dead letter nowhere/1-1")


def test_a_replay_makes_new_requests_and_names_what_cannot_be_replayed(
    headrace: Headrace, letters: list[str], server: EmbeddedValkey, names: Names
) -> None:
    [new] = headrace("dlq", "replay", "--all", code=1, error="`headrace dlq purge`").split()
    assert new.startswith("req_")
    [left] = json.loads(headrace("dlq", "list", "--json"))
    assert left["position"] == letters[0]
    headrace("dlq", "replay", letters[1], code=1, error=f"no dead letter {letters[1]}")

    async def taken(broker: Broker) -> list[Message]:
        session = await broker.consume([Lane.STANDARD], LEASE_MS)
        return [delivery.message for delivery in await session.pull(5, 0)]

    [message] = with_broker(server, names, taken)
    assert (message.request_id, message.headers["replay-of"]) == (new, "id-a")


def test_a_purge_asks_before_it_removes_anything(
    headrace: Headrace, letters: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace("dlq", "purge", "--all", code=2, error="2 dead letters would be removed for good; pass --yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question: "2 dead letters" not in question)
    headrace("dlq", "purge", "--all", code=2, error="nothing was removed")
    assert len(json.loads(headrace("dlq", "list", "--json"))) == 2


def test_a_purge_removes_what_it_is_told_and_no_more(headrace: Headrace, letters: list[str]) -> None:
    assert headrace("dlq", "purge", "--older-than", "1h", "--yes") == "0 purged\n"
    named = ("dlq", "purge", letters[0], "nope", "nowhere/1-1", "--yes")
    unknown = "there is no dead letter nope\nthere is no dead letter nowhere/1-1\n"
    assert headrace(*named, code=1, error=unknown) == "1 purged\n"
    assert [letter["position"] for letter in json.loads(headrace("dlq", "list", "--json"))] == letters[1:]
    assert headrace("dlq", "purge", "--older-than", "0s", "--yes") == "1 purged\n"
    assert headrace("dlq", "list") == "no dead letters\n"
    assert headrace("dlq", "purge", "--all") == "0 purged\n"


@pytest.mark.parametrize(
    "arguments",
    [("replay",), ("purge",), ("purge", "--all", "--older-than", "1d"), ("replay", "--all", "a/1-1")],
)
def test_which_letters_must_be_said_in_one_way(
    headrace: Headrace, names: Names, arguments: tuple[str, ...]
) -> None:
    headrace("dlq", *arguments, code=2, error="which dead letters?")


def test_ages_are_read_and_shown_in_days() -> None:
    assert parse_age("7d") == 7 * 86_400_000
    assert parse_age("1.5h") == 5_400_000
    assert age(parse_age("7d") + parse_age("5h")) == "7 d 5 h"
    for nonsense in ("7", "d", "-1d", "1w", ""):
        with pytest.raises(Mistake, match="90s, 30m, 12h or 7d"):
            parse_age(nonsense)


def test_a_paused_lane_is_shown_and_gives_nothing_until_it_is_resumed(
    headrace: Headrace, server: EmbeddedValkey, names: Names
) -> None:
    async def pull(broker: Broker) -> int:
        await broker.publish([Message(b"{}", lane=Lane.BATCH)])
        session = await broker.consume([Lane.BATCH], LEASE_MS)
        pulled = len(await session.pull(9, 0))
        await session.close()
        return pulled

    assert headrace("lane", "pause", "batch") == "batch is paused\n"
    assert with_broker(server, names, pull) == 0
    lanes = json.loads(headrace("queue", "--json"))["lanes"]
    assert [name for name, lane in lanes.items() if lane["paused"]] == ["batch"]
    assert "paused" in headrace("queue")
    assert headrace("lane", "resume", "batch") == "batch goes on\n"
    assert with_broker(server, names, pull) == 2
    assert "paused" not in headrace("queue")
    headrace("lane", "pause", "express", code=2, error="express")


def test_pools_are_shown_apart(headrace: Headrace, server: EmbeddedValkey, names: Names) -> None:
    async def work(broker: Broker) -> None:
        await broker.publish([Message(b"{}", lane=Lane.BATCH, pool="vision")])
        session = await broker.consume([Lane.BATCH], LEASE_MS, pool="vision")
        await session.close()

    with_broker(server, names, work)
    assert headrace("lane", "pause", "batch", "--pool", "vision") == "batch of pool vision is paused\n"
    stats: dict[str, Any] = json.loads(headrace("queue", "--json"))
    kinds = {"lanes", "leases", "retrying", "consumers"}
    assert set(stats) == kinds | {"dead_letters", "pools", "strays"}
    assert (stats["consumers"], stats["pools"]["vision"]["consumers"]) == (0, 0)
    assert stats["lanes"]["batch"] == {"waiting": 0, "leased": 0, "oldest_ms": 0, "paused": False}
    vision = stats["pools"]["vision"]["lanes"]["batch"]
    assert (vision["waiting"], vision["paused"]) == (1, True)
    assert "pool vision" in headrace("queue")
    assert (
        "no consumer of the pool vision is up: start one with `headrace consumer --pool vision`"
        in headrace("queue")
    )
    headrace("lane", "pause", "batch", "--pool", "no.dots", code=2, error="is no name of a pool")


def test_streams_that_nobody_reads_are_named_with_what_to_do(
    headrace: Headrace, server: EmbeddedValkey, names: Names
) -> None:
    async def serve_vision(broker: Broker) -> None:
        session = await broker.consume([Lane.BATCH], LEASE_MS, pool="vision")
        await session.close()

    with_broker(server, names, serve_vision)
    assert "nobody reads" not in headrace("queue")
    base = names.request_base
    with Redis.from_url(server.url) as client:
        for name in ("foo", "foo", "visoin.batch", "a\x1b/ü", "batch"):
            client.xadd(f"{base}.{name}", {"body": b"{}"})
        client.xadd(f"{names.prefix}2.requests.foo", {"body": b"{}"})
        client.set(f"{base}.text", "no stream")
    lines = [line for line in headrace("queue").splitlines() if line.startswith("nobody reads")]
    lanes = "interactive, standard, batch, background"
    assert lines == [
        f"nobody reads {base}.a·/ü (1 entry): its name ends in no lane ({lanes}); publish them to one, and "
        "delete it",
        f"nobody reads {base}.foo (2 entries): its name ends in no lane ({lanes}); publish them to one, and "
        "delete it",
        f"nobody reads {base}.visoin.batch (1 entry): start a consumer with --pool visoin, or delete it",
    ]
    strays = json.loads(headrace("queue", "--json"))["strays"]
    assert strays[1] == {"queue": f"{base}.foo", "entries": 2}


def test_consumers_say_what_they_serve(headrace: Headrace, server: EmbeddedValkey, names: Names) -> None:
    assert headrace("consumers") == "no consumer is up\n"
    shown: list[str] = []

    async def work(broker: Broker) -> None:
        session = await broker.consume([Lane.BATCH, Lane.STANDARD], LEASE_MS, pool="vision")
        await session.announce(Serves(("llama", "alias"), 4))
        shown.append(await asyncio.to_thread(headrace, "consumers"))
        shown.append(await asyncio.to_thread(headrace, "consumers", "--json"))
        await session.close()

    with_broker(server, names, work)
    assert all(word in shown[0] for word in ("vision", "batch", "standard", "llama, alias", "4"))
    [entry] = json.loads(shown[1])
    assert (entry["pool"], entry["serves"]) == ("vision", {"models": ["llama", "alias"], "slots": 4})
    assert headrace("consumers", "--json") == "[]\n"


def test_a_published_file_goes_to_its_pool_with_its_wishes(
    headrace: Headrace, server: EmbeddedValkey, names: Names, tmp_path: Path
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    reply = f"{names.prefix}.reply.me"
    wishes = ("--pool", "vision", "--queue-timeout", "1.5", "--stream", "--reply-to", reply)
    [request_id] = headrace("publish", str(tmp_path / "in.jsonl"), *wishes).split()

    async def taken(broker: Broker) -> list[Message]:
        session = await broker.consume([Lane.BATCH], LEASE_MS, pool="vision")
        return [delivery.message for delivery in await session.pull(5, 0)]

    [message] = with_broker(server, names, taken)
    assert (message.request_id, message.queue_timeout_ms) == (request_id, 1500)
    assert (message.stream, message.reply_to) == (True, reply)
    headrace("publish", str(tmp_path / "in.jsonl"), "--reply-to", "other", code=2, error="'other'")
