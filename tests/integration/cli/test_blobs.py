"""`headrace blobs sweep`: what is old goes, unless somebody may still need it."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from headrace.broker.blobs import BlobStore, check_in
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.headers import CLAIM
from headrace.broker.message import JSON, Lane, Message
from headrace.broker.names import Names
from headrace.broker.redis_streams.codec import encode
from headrace.cli.app import execute

DAY_S = 86_400


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_BROKER", "HEADRACE_BLOBS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


def put(store: Path, body: bytes, days_ago: float) -> Path:
    """The blob's file."""
    claim = asyncio.run(BlobStore(str(store)).put(body, JSON))
    then = time.time() - days_ago * DAY_S
    os.utime(store / claim.address, (then, then))
    return store / claim.address


def test_what_is_older_is_dropped_and_counted_and_the_rest_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = put(tmp_path, b"old", 8), put(tmp_path, b"young", 6)
    monkeypatch.setenv("HEADRACE_BLOBS", str(tmp_path))
    assert execute(["blobs", "sweep", "--older-than", "7d"]) == 0
    assert capsys.readouterr().out == "1 dropped\n"
    assert (old.exists(), young.exists()) == (False, True)
    assert execute(["blobs", "sweep", "--older-than", "1d", "--blobs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 dropped\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--older-than", "23h", "--blobs", "{store}"), "older than 1d or more"),
        (("--older-than", "soon", "--blobs", "{store}"), "is no age"),
        (("--older-than", "7d"), "HEADRACE_BLOBS"),
        (("--blobs", "{store}"), "--older-than"),
        (("--older-than", "7d", "--blobs", "{store}/none"), "/none to sweep"),
        (("--older-than", "7d", "--blobs", "{store}", "--broker", "unix:///none"), "cannot reach"),
    ],
)
def test_what_cannot_be_swept_for_sure_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    kept = put(tmp_path, b"body", 30)
    assert execute(["blobs", "sweep", *(word.format(store=tmp_path) for word in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert kept.exists()


def queued(server: EmbeddedValkey, names: Names, store: Path, days_ago: int) -> list[bytes]:
    """A claimed request of some days ago, as its fields; stands on its lane."""
    message = asyncio.run(check_in(Message(b"body", "r"), BlobStore(str(store), threshold=0)))
    fields = encode(message, names)
    entry_id = f"{round((time.time() - days_ago * DAY_S) * 1000)}-1"
    with Redis.from_url(server.url) as client:
        client.execute_command("XADD", names.requests(Lane.STANDARD), entry_id, *fields)
    return fields


def test_a_store_is_not_swept_below_the_age_of_what_waits(
    server: EmbeddedValkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = Names(f"t{uuid.uuid4().hex[:8]}")
    queued(server, names, tmp_path, days_ago=8)
    kept = put(tmp_path, b"body", 8)
    command = ("blobs", "sweep", "--blobs", str(tmp_path), "--broker", server.url, "--prefix", names.prefix)
    assert execute([*command, "--older-than", "7d"]) == 2
    assert "standard a request has waited for 8 d" in capsys.readouterr().err
    assert kept.exists()
    assert execute([*command, "--older-than", "9d"]) == 0


def test_a_store_is_not_swept_below_the_age_of_a_dead_letter_whose_body_it_holds(
    server: EmbeddedValkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = Names(f"t{uuid.uuid4().hex[:8]}")
    fields = queued(server, names, tmp_path, days_ago=0)
    assert CLAIM.encode() in fields
    buried = round((time.time() - 8 * DAY_S) * 1000)
    with Redis.from_url(server.url) as client:
        client.delete(names.requests(Lane.STANDARD))
        head = (b"reason", b"why", b"origin", f"{names.requests(Lane.STANDARD)}/1-1".encode())
        for number, rest in ((1, (b"body", b"whole")), (2, tuple(fields))):
            client.execute_command("XADD", names.dead_letters, f"{buried}-{number}", *head, *rest)
    kept = put(tmp_path, b"body", 9)
    command = ("blobs", "sweep", "--blobs", str(tmp_path), "--broker", server.url, "--prefix", names.prefix)
    assert execute([*command, "--older-than", "7d"]) == 2
    assert f"{names.dead_letters}/{buried}-2 is in the store" in capsys.readouterr().err
    assert kept.exists()
    assert execute([*command, "--older-than", "8.5d"]) == 0
    assert not kept.exists()
