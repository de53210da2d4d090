"""Whatever is sent to a running service, it says what became of it, and whoever is beside it is answered.

The same messages on both brokers, sent by plain clients, all of them through one service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.bad_messages import Case, cases, good, twins
from tests.support.doors import DAY_MS, RedisDoor
from tests.support.house import House, open_house
from tests.support.outside_clients import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HUGE = 20_000_000  # characters of a prompt


@pytest.fixture(scope="module", params=["redis", "kafka"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(request, tmp_path_factory.mktemp(request.param)) as house:
        yield house


def test_each_bad_message_comes_to_its_end_and_its_neighbours_are_answered(house: House) -> None:
    bad = cases(house.door.prefix)
    for case in bad:
        house.publish_with_neighbours(case)
    house.come_to_rest()
    letters, lines = house.door.letters(), house.results()
    for case in bad:
        reasons = [letter.reason for letter in letters if case.name.encode() in letter.body]
        assert len(reasons) == (case.letter is not None), (case.name, reasons)
        assert (case.letter or "") in "".join(reasons), (case.name, reasons)
    ends = {line["custom_id"]: _end(line) for line in lines if line["custom_id"] is not None}
    wanted = {case.name: (case.status, case.code) for case in bad if case.code and not case.letter}
    assert {name: ends[name] for name in wanted} == wanted
    nameless = Counter(_end(line) for line in lines if line["custom_id"] is None)
    assert nameless == Counter((case.status, case.code) for case in bad if case.code and case.letter)
    silent = {case.name for case in bad if not case.code}
    assert not silent & ends.keys()


def test_a_message_without_a_body_is_a_dead_letter(house: House) -> None:
    before = len(house.door.letters())
    house.publish_with_neighbours(Case("no-body", None, {b"note": b"nothing"}))
    house.settle()
    assert [letter.reason for letter in house.door.letters()[before:]] in (
        ["there is no field `body`"],
        ["the record has no value"],
    )


def test_an_id_that_comes_back_is_one_request_and_with_another_body_a_dead_letter(house: House) -> None:
    for request_id, body in twins():
        house.door.publish("standard", body, {b"request-id": request_id})
    house.expect("twin")
    house.publish("behind-the-twins")
    house.come_to_rest()
    assert house.answered()["not-like-its-twin"] == 0
    [letter] = [letter for letter in house.door.letters() if b"not-like-its-twin" in letter.body]
    assert "another body" in letter.reason


def test_a_reply_topic_that_does_not_exist_is_made(house: House) -> None:
    reply = f"{house.door.prefix}.reply.new"
    house.door.publish("standard", good("replied"), {b"reply-to": reply.encode()})
    house.publish("behind-the-reply")
    house.settle()
    [line] = house.door.lines(reply)
    assert (line["custom_id"], line["response"]["status_code"]) == ("replied", 200)
    assert house.answered()["replied"] == 0


def test_clocks_of_publishers_do_not_count(house: House) -> None:
    for name, shift_ms in (("from-yesterday", -DAY_MS), ("from-tomorrow", DAY_MS), ("from-now", 0)):
        house.door.publish_from_another_time("background", good(name), shift_ms, timeout_s=60)
        house.expect(name)
    house.settle()


def test_what_is_sent_to_a_lane_that_there_is_not_disturbs_nobody(house: House) -> None:
    for lane in ("nowhere", "a lane/\u00fc"):
        if not house.door.refuses(lane, good("nobody-reads-this")):
            assert isinstance(house.door, RedisDoor)
            assert house.door.left(lane) == 1, "it lies where it was put"
        refused = house.command("lane", "pause", lane)
        assert refused.returncode == 2
        assert "'interactive', 'standard', 'batch', 'background'" in refused.stderr
        house.publish(f"beside-{lane}")
    house.settle()
    assert house.answered()["nobody-reads-this"] == 0


def test_a_huge_prompt_is_refused_by_its_size(house: House) -> None:
    body = good("huge").replace(b"Say huge", b"x" * HUGE)
    if not house.door.refuses("standard", body):
        eventually(
            lambda: any("longer than" in letter.reason for letter in house.door.letters()), "its letter"
        )
    status, words = house.generate(prompt="x" * HUGE)
    assert (status, "larger than max" in words) == ("RESOURCE_EXHAUSTED", True)
    house.publish("behind-the-huge-one")
    house.settle()
    assert house.answered()["huge"] == 0


def test_the_gateway_refuses_what_it_can_tell_and_serves_the_next(house: House) -> None:
    mine: dict[str, Any] = {"request_id": "mine", "prompt": "Hello"}
    assert house.generate(**mine) == ("OK", "")
    refused: dict[str, tuple[str, dict[str, Any]]] = {
        "an id of other content": ("ALREADY_EXISTS", {"request_id": "mine", "prompt": "Other"}),
        "a model of nobody": ("NOT_FOUND", {"prompt": "Hello", "model": "gpt-9"}),
        "a lane that there is not": ("INVALID_ARGUMENT", {"prompt": "Hello", "lane": 99}),
        "a deadline in the past": (
            "DEADLINE_EXCEEDED",
            {"prompt": "Hello", "deadline": Timestamp(seconds=1)},
        ),
        "an id that is too long": ("INVALID_ARGUMENT", {"prompt": "Hello", "request_id": "x" * 5_000}),
        "nothing to answer": ("INVALID_ARGUMENT", {}),
    }
    assert {what: house.generate(**fields)[0] for what, (_, fields) in refused.items()} == {
        what: status for what, (status, _) in refused.items()
    }
    assert house.generate(**mine) == ("OK", ""), "the same once more is the same answer"
    house.settle()


def _end(line: dict[str, Any]) -> tuple[int | None, str]:
    """Status, if there is a response, and code of a line that tells of a failure."""
    if line["error"] is not None:
        return None, line["error"]["code"]
    response = line["response"]
    error = response["body"].get("error") or {"code": ""}
    return response["status_code"], error["code"]
