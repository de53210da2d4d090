"""Every kind of bad line in one file: each gets its error with its line number, the others their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.integration.cli.conftest import PATIENCE_S, SIM, Spawn

pytestmark = pytest.mark.slow

MIB = 1 << 20
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


@dataclass(frozen=True)
class Row:
    """One physical line. `code` None: it is answered; "": it is blank, so nothing comes of it. `at_consumer`:
    only a consumer, with its model, can tell that it is wrong."""

    name: str
    raw: bytes
    code: str | None
    says: str = ""
    custom_id: str | None = None
    at_consumer: bool = False
    end: bytes = b"\n"


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> bytes:
    whole = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, **body}
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": whole}
    return json.dumps(fields, ensure_ascii=False).encode()


def good(name: str, raw: bytes | None = None, end: bytes = b"\n") -> Row:
    return Row(name, raw or line(name), None, custom_id=name, end=end)


def blank(raw: bytes, end: bytes = b"\n") -> Row:
    return Row("blank", raw, "", end=end)


def unreadable(name: str, raw: bytes, says: str) -> Row:
    return Row(name, raw, "invalid_json_line", says)


def wrong(name: str, says: str, code: str = "invalid_request", **body: Any) -> Row:
    return Row(name, line(name, **body), code, says, custom_id=name)


def content(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def with_raw_value(name: str, value: bytes) -> bytes:
    """A line whose `temperature` is written as it stands."""
    return line(name, temperature="@").replace(b'"@"', value)


ROWS = (
    good("byte order mark", b"\xef\xbb\xbf" + line("byte order mark")),
    good("carriage return", end=b"\r\n"),
    blank(b""),
    blank(b" \t ", end=b"\r\n"),
    blank(b" " * (9 * MIB)),
    unreadable("latin-1", line("x").replace(b"Hello", b"caf\xe9"), "not valid UTF-8"),
    unreadable("encoded surrogate", line("x").replace(b"Hello", b"\xed\xa0\x80"), "not valid UTF-8"),
    unreadable("a key in latin-1", line("x").replace(b"method", b"m\xe9thod"), "not valid UTF-8"),
    unreadable("half a pair", line("x").replace(b"Hello", rb"\ud83d"), "surrogate"),
    good("a whole pair", line("a whole pair").replace(b"Hello", rb"\ud83d\ude00")),
    good(
        "separators \u2028 \u2029 \u0085",
        line("separators \u2028 \u2029 \u0085", messages=content("a\u2028b")),
    ),
    good("carriage return inside", line("carriage return inside").replace(b'"url"', b'\r"url"')),
    good("nul \0", line("nul \0", messages=content("a\0b"))),
    unreadable("control character", line("x").replace(b"Hello", b"\x01"), "not valid JSON"),
    unreadable("nul bytes", b"\0" * 20, "not valid JSON"),
    unreadable("9 MiB", line("x", messages=content("x" * (9 * MIB))), "longer than 8,388,608 bytes"),
    unreadable("NaN", with_raw_value("x", b"NaN"), "NaN"),
    unreadable("Infinity", with_raw_value("x", b"-Infinity"), "Infinity"),
    unreadable("beyond a double", with_raw_value("x", b"1e999"), "out of range"),
    unreadable("thousands of digits", with_raw_value("x", b"9" * 5000), "out of range"),
    unreadable("depth bomb", b"[" * 200_000, "nested too deeply"),
    unreadable("depth bomb inside", with_raw_value("x", b"[" * 5000 + b"]" * 5000), "nested too deeply"),
    unreadable("torn", line("x")[:-9], "truncated"),
    unreadable("two in one line", line("x") + line("y"), "trailing"),
    unreadable("no object", b"[1, 2]", "not a list"),
    unreadable("single quotes", b"{'custom_id': 'x'}", "not valid JSON"),
    good("twice"),
    Row("twice", line("twice"), "duplicate_custom_id", "that of line 27", custom_id="twice"),
    Row(
        "no id", line("x").replace(b'"custom_id"', b'"costum_id"'), "missing_required_parameter", "custom_id"
    ),
    Row("number as id", line("x").replace(b'"x"', b"7"), "invalid_request", "not an integer"),
    Row("empty id", line(""), "invalid_request", "1 to 512 characters"),
    Row("long id", line("i" * 10_000), "invalid_request", "1 to 512 characters, not 10000"),
    good("i" * 512),
    wrong("unknown url", "/v1/completions", "invalid_url", url="/v1/responses"),
    Row("no method", line("m").replace(b'"POST"', b'"GET"'), "invalid_method", "POST", custom_id="m"),
    Row("no body", line("b").replace(b'"body"', b'"bdoy"'), "missing_required_parameter", "body", "b"),
    wrong("zero tokens", "at least 1, not 0", max_tokens=0),
    wrong("negative tokens", "at least 1, not -5", max_tokens=-5),
    wrong("too many tokens", "at most 2147483647", max_tokens=2**31),
    wrong("half a token", "must be an integer", max_tokens=1.5),
    wrong("tokens as text", "not a string", max_tokens="7"),
    good("all the tokens there are", line("all the tokens there are", max_tokens=2**31 - 1)),
    wrong("hot", "temperature must be a number", temperature="hot"),
    wrong("messages as text", "messages must be a list", messages="Hello"),
    wrong("no messages", "at least one message", messages=[]),
    wrong("unknown role", "messages[0].role", messages=[{"role": "robot", "content": "x"}]),
    wrong("number as content", "messages[0].content", messages=[{"role": "user", "content": 3}]),
    wrong("streaming", "stream must be false", "streaming_unsupported", stream=True),
    wrong("tools", "tools[0].function is", "missing_required_parameter", tools=[{"type": "function"}]),
    good("unknown parameter", line("unknown parameter", frobnicate=3)),
    Row("long", line("long", messages=content("w" * 9000)), "context_length_exceeded", "9018", "long", True),
    Row("able", line("able", tools=TOOLS), "unsupported_parameter", "tools cannot be used", "able", True),
    Row("alien", line("alien", model="gpt-99"), "model_not_found", "gpt-99", "alien", True),
    good("no newline at the end", end=b""),
)


@pytest.fixture(scope="module")
def bad_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "bad.jsonl"
    path.write_bytes(b"".join(row.raw + row.end for row in ROWS))
    return path


@pytest.fixture
def broker_url(tmp_path: Path) -> Iterator[str]:
    with EmbeddedValkey(tmp_path / "broker") as server:
        yield server.url


def test_in_a_run_every_line_gets_its_answer_or_an_error_with_its_number(
    spawn: Spawn, bad_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = spawn("run", bad_file, "-o", out, *SIM, "--max-total-tokens", "4096")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    results = [json.loads(line) for line in out.read_text().splitlines()]  # as careless readers split them
    by_number = {int(result["id"].rpartition("_")[2]): result for result in results}
    expected = {number: row for number, row in enumerate(ROWS, 1) if row.code != ""}
    assert by_number.keys() == expected.keys()
    assert len(results) == len(expected)
    for number, row in expected.items():
        check_result(by_number[number], row, number)


def check_result(result: dict[str, Any], row: Row, number: int) -> None:
    """Field by field, the output line of the OpenAI batch API."""
    assert result.keys() == {"id", "custom_id", "response", "error"}
    assert result["custom_id"] == row.custom_id
    assert result["error"] is None
    response = result["response"]
    assert response.keys() == {"status_code", "request_id", "body"}
    assert result["id"] == "batch_" + response["request_id"]
    if row.code is None:
        assert response["status_code"] == 200, row.name
        check_answer(response["body"])
    else:
        assert response["status_code"] in (400, 404), row.name
        error = response["body"]["error"]
        assert (error["code"], error["line"]) == (row.code, number), row.name
        assert error["message"].startswith(f"line {number}: ")
        assert row.says in error["message"]
        assert {"message", "type", "param", "code"} <= error.keys()


def check_answer(body: dict[str, Any]) -> None:
    assert body.keys() == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
    assert choice["message"].keys() == {"role", "content", "refusal"}
    assert choice["finish_reason"] in ("stop", "length")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_publish_names_the_bad_lines_and_publishes_the_good_ones(
    spawn: Spawn, bad_file: Path, broker_url: str
) -> None:
    process = spawn("publish", bad_file, "--broker", broker_url)
    ids, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    named = re.findall(r"^line (\d+): .* \((\w+)\)$", errors, re.MULTILINE)
    told = {int(number): code for number, code in named}
    refused = {n: row.code for n, row in enumerate(ROWS, 1) if row.code and not row.at_consumer}
    published = sum(row.code is None or row.at_consumer for row in ROWS)
    assert told == refused
    assert len(set(ids.split())) == published
    assert errors.endswith(f"{published} published, {len(refused)} refused\n")


def test_publish_says_how_far_it_came_when_nobody_reads_its_ids(
    spawn: Spawn, tmp_path: Path, broker_url: str
) -> None:
    many = tmp_path / "many.jsonl"
    many.write_bytes(b"".join(line(f"line {number}") + b"\n" for number in range(20_000)))
    process = spawn("publish", many, "--broker", broker_url)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    [sentence] = process.stderr.read().splitlines()
    assert process.wait(PATIENCE_S) == 2
    assert re.search(r"nobody reads the ids any more; .* \d+ requests are published", sentence)
