"""`redis-cli` as the only client of a service: requests in, answers and streams out, rubbish set aside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.outside_clients import (
    PATIENCE_S,
    answer_text,
    chat_line,
    check_answers,
    eventually,
    find_client,
    service,
    sorted_out,
    streamed_text,
)

pytestmark = pytest.mark.slow

LANES = ("interactive", "standard", "batch", "background")


class RedisCli:
    """Runs `redis-cli` against one server."""

    def __init__(self, program: str, url: str) -> None:
        self._command = [program, "-p", str(urlsplit(url).port), "--json"]

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Any:
        """The reply. With `stdin`, its bytes are the last argument."""
        read = ["-x"] if stdin is not None else []
        command = [*self._command, *read, *arguments]
        done = subprocess.run(
            command, input=stdin or b"", capture_output=True, timeout=PATIENCE_S, check=True
        )
        return json.loads(done.stdout.decode(errors="replace"))

    def publish(self, lane: str, body: str, *fields: str) -> None:
        self("XADD", f"headrace.requests.{lane}", "*", *fields, "body", stdin=body.encode())

    def entries(self, stream: str) -> list[dict[str, str]]:
        """All entries of a stream, oldest first."""
        reply = self("XRANGE", stream, "-", "+")
        return [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in reply]

    def lines(self, stream: str) -> list[str]:
        return [entry["body"] for entry in self.entries(stream)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find_client("redis-cli")
    with service(tmp_path_factory.mktemp("redis-service"), "--consumers", "2") as ready:
        yield ready["broker"]


@pytest.fixture
def redis(url: str) -> RedisCli:
    client = RedisCli(find_client("redis-cli"), url)
    client("DEL", "headrace.results", "headrace.dlq")
    return client


def settled(redis: RedisCli) -> bool:
    """Whether nothing waits or runs any more: what is not there now will never come."""
    return all(redis("XLEN", f"headrace.requests.{lane}") == 0 for lane in LANES)


def test_lines_of_several_lanes_are_answered_once_each(redis: RedisCli) -> None:
    ids = [f"{lane}-{number}" for number in range(4) for lane in LANES]
    for custom_id in ids:
        redis.publish(custom_id.partition("-")[0], chat_line(custom_id))
    eventually(lambda: settled(redis), "all answers")
    check_answers(redis.lines("headrace.results"), ids)


def test_a_stream_on_a_reply_topic_adds_up_to_its_answer(redis: RedisCli) -> None:
    reply = "headrace.reply.mine"
    redis.publish("interactive", chat_line("s", max_tokens=40), "reply-to", reply, "stream", "true")
    eventually(lambda: settled(redis), "the answer")
    *chunks, last = redis.lines(reply)
    check_answers([last], ["s"])
    assert len(chunks) > 1
    assert streamed_text(chunks) == answer_text(json.loads(last))
    assert redis("XLEN", "headrace.results") == 0


def test_rubbish_is_set_aside_with_a_reason_and_its_neighbours_go_on(redis: RedisCli) -> None:
    redis.publish("batch", chat_line("before"))
    redis("XADD", "headrace.requests.batch", "*", "body", stdin=b"\xff\xfe\x00 no message")
    redis("XADD", "headrace.requests.batch", "*", "text", "no body", "deadline", "tomorrow")
    redis.publish("batch", chat_line("after"))
    eventually(lambda: settled(redis), "the neighbours")
    letters = redis.entries("headrace.dlq")
    assert len(letters) == 2
    assert all(letter["reason"] and letter["origin"] for letter in letters)
    assert any("no field `body`" in letter["reason"] for letter in letters)
    good, bad = sorted_out(redis.lines("headrace.results"))
    check_answers(good, ["before", "after"])
    assert len(bad) == 1, "the body that is no JSON has an error line, too"


def test_the_same_id_and_body_is_one_request_and_another_body_a_dead_letter(redis: RedisCli) -> None:
    for body in (chat_line("one"), chat_line("one"), chat_line("two")):
        redis.publish("standard", body, "request-id", "mine")
    eventually(lambda: settled(redis), "the answer")
    check_answers(redis.lines("headrace.results"), ["one"])
    [letter] = redis.entries("headrace.dlq")
    assert json.loads(letter["body"])["custom_id"] == "two"


def test_an_answer_is_awaited_by_a_blocking_read(redis: RedisCli) -> None:
    redis.publish("interactive", chat_line("awaited"))
    reply = redis("XREAD", "BLOCK", str(round(PATIENCE_S * 1000)), "STREAMS", "headrace.results", "0")
    [[_, fields]] = reply["headrace.results"] if isinstance(reply, dict) else reply[0][1]
    check_answers([dict(zip(fields[::2], fields[1::2], strict=True))["body"]], ["awaited"])
