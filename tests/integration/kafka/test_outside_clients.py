"""`kcat` as the only client of a service: requests in, answers and streams out, rubbish set aside."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LANES = ("interactive", "standard", "batch", "background")


class Kcat:
    """Runs `kcat` against one installation."""

    def __init__(self, program: str, bootstrap: str, prefix: str) -> None:
        self._command = [program, "-b", bootstrap, "-q"]
        self.prefix = prefix

    def publish(self, lane: str, values: bytes, *options: str) -> None:
        """Each line is a record."""
        self._run("-P", "-t", f"{self.prefix}.requests.{lane}", *options, stdin=values)

    def read(self, topic: str, form: str = "%s\n") -> list[str]:
        """All records of a topic that are there now, as a reader of committed ones sees them."""
        isolation = ("-X", "isolation.level=read_committed")
        output = self._run("-C", "-t", topic, "-o", "beginning", "-e", "-f", form, *isolation)
        return output.decode(errors="replace").splitlines()

    def lines(self, topic: str, custom_ids: list[str]) -> list[str]:
        """Those of a result topic that answer these requests."""
        return [line for line in self.read(topic) if json.loads(line)["custom_id"] in custom_ids]

    def topics(self) -> set[str]:
        described = json.loads(self._run("-L", "-J"))
        return {topic["topic"] for topic in described["topics"]}

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = [*self._command, *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, timeout=PATIENCE_S, check=True
        ).stdout


@pytest.fixture(scope="module")
def kcat(kafka_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kcat]:
    """A client of a running service. When that has drained, all answers are looked at once more: one for each
    request, however often its lines were read before."""
    prefix = f"o{uuid.uuid4().hex[:8]}"
    client = Kcat(find_client("kcat"), kafka_url.removeprefix("kafka://"), prefix)
    options = ("--broker", kafka_url, "--broker-option", "partitions=4", "--prefix", prefix)
    with service(tmp_path_factory.mktemp("kafka-service"), *options, "--consumers", "2"):
        yield client
    ids = [json.loads(line)["custom_id"] for line in client.read(f"{prefix}.results")]
    answered = [custom_id for custom_id in ids if custom_id is not None]
    assert len(answered) == len(set(answered))


def awaited(kcat: Kcat, custom_ids: list[str]) -> list[str]:
    """Lines of the result topic that answer these requests, once there is one for each."""
    results = f"{kcat.prefix}.results"
    eventually(lambda: len(kcat.lines(results, custom_ids)) >= len(custom_ids), "all answers")
    return kcat.lines(results, custom_ids)


def test_lines_of_several_lanes_are_answered_once_each(kcat: Kcat) -> None:
    ids = [f"{lane}-{number}" for number in range(5) for lane in LANES]
    for lane in LANES:
        of_lane = [custom_id for custom_id in ids if custom_id.startswith(lane)]
        kcat.publish(lane, "".join(f"{chat_line(custom_id)}\n" for custom_id in of_lane).encode())
    check_answers(awaited(kcat, ids), ids)


def test_keys_are_the_publishers_own_affair(kcat: Kcat) -> None:
    ids = [f"keyed-{number}" for number in range(6)]
    lines = "".join(f"{custom_id}|{chat_line(custom_id)}\n" for custom_id in ids)
    kcat.publish("standard", lines.encode(), "-K", "|")
    check_answers(awaited(kcat, ids), ids)


def test_a_stream_on_a_reply_topic_adds_up_to_its_answer(kcat: Kcat) -> None:
    reply = f"{kcat.prefix}.reply.mine"
    headers = ("-H", f"reply-to={reply}", "-H", "stream=true", "-H", "traceparent=00-1-2-3")
    kcat.publish("interactive", f"{chat_line('s', max_tokens=60)}\n".encode(), *headers)
    eventually(lambda: reply in kcat.topics(), "the reply topic")
    eventually(lambda: "object" not in json.loads((kcat.read(reply) or ['{"object": ""}'])[-1]), "the answer")
    *chunks, last = kcat.read(reply)
    check_answers([last], ["s"])
    assert len(chunks) > 1
    assert streamed_text(chunks) == answer_text(json.loads(last))
    assert "traceparent=00-1-2-3" in kcat.read(reply, "%h\n")[-1]
    assert kcat.lines(f"{kcat.prefix}.results", ["s"]) == []


def test_rubbish_is_set_aside_with_a_reason_and_its_neighbours_go_on(kcat: Kcat) -> None:
    kcat.publish("batch", f"{chat_line('before')}\n".encode())
    kcat.publish("batch", b"\xff\xfe no message\n")
    kcat.publish("batch", f"{chat_line('never')}\n".encode(), "-H", "deadline=tomorrow")
    kcat.publish("batch", f"{chat_line('after')}\n".encode())
    check_answers(sorted_out(awaited(kcat, ["before", "after"]))[0], ["before", "after"])
    letters = f"{kcat.prefix}.dlq"
    eventually(lambda: len(kcat.read(letters)) >= 2, "the dead letters")
    shown = "\n".join(kcat.read(letters, "%h %s\n"))
    assert "not valid UTF-8" in shown
    assert "'tomorrow', which is no unix time" in shown
    assert "no message" in shown
    assert kcat.lines(f"{kcat.prefix}.results", ["never"]) == []
