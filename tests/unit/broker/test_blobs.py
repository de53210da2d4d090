"""Claim check: what is put comes back whole or not at all, and nothing else is ever read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from msgspec import structs

from headrace.broker.blobs import (
    BlobChanged,
    BlobError,
    BlobMissing,
    BlobRefused,
    BlobStore,
    BlobUnreachable,
    address_of,
    check_in,
    check_out,
)
from headrace.broker.message import JSON, PROTOBUF, Claim, Message

BODY = b"a body " * 100


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "blobs") if request.param == "folder" else f"memory://{tmp_path.name}"
    MemoryFileSystem.store.clear()


@pytest.fixture
def store(url: str) -> BlobStore:
    return BlobStore(url, threshold=100, limit=10_000)


def claim_of(body: bytes, content_type: str = JSON, address: str | None = None) -> Claim:
    body_hash = Message(body, content_type=content_type).body_hash
    return Claim(address_of(body_hash) if address is None else address, body_hash, len(body))


def _files_in(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------- put and fetch


@pytest.mark.parametrize("content_type", [JSON, PROTOBUF])
@pytest.mark.parametrize("body", [b"", b"\0\xff" * 500, BODY])
async def test_what_was_put_is_fetched(store: BlobStore, body: bytes, content_type: str) -> None:
    claim = await store.put(body, content_type)
    assert claim == claim_of(body, content_type)
    assert await store.fetch(claim, content_type) == body


async def test_the_same_body_is_the_same_blob_and_another_type_is_another(store: BlobStore) -> None:
    claims = [await store.put(BODY, content_type) for content_type in (JSON, JSON, PROTOBUF)]
    assert claims[0] == claims[1] != claims[2]
    assert await store.sweep(-60) == 2


async def test_two_stores_on_the_same_address_share_their_blobs(store: BlobStore, url: str) -> None:
    claim = await BlobStore(url).put(BODY, JSON)
    assert await store.fetch(claim, JSON) == BODY


async def test_putting_it_again_mends_a_blob_that_was_damaged(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path))
    claim = await store.put(BODY, JSON)
    (tmp_path / claim.address).write_bytes(b"rubbish")
    assert await store.put(BODY, JSON) == claim
    assert await store.fetch(claim, JSON) == BODY


async def test_a_write_that_fails_leaves_nothing_and_harms_no_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(str(tmp_path))
    claim = await store.put(BODY, JSON)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for body in (BODY, b"another"):
        with pytest.raises(BlobUnreachable, match="No space left"):
            await store.put(body, JSON)
    assert _files_in(tmp_path) == [claim.address]
    assert await store.fetch(claim, JSON) == BODY


# ------------------------------------------------------------------------------------------ what goes wrong


async def test_a_blob_that_is_not_there_is_missing(store: BlobStore) -> None:
    await store.put(b"something else", JSON)
    with pytest.raises(BlobMissing, match="not in"):
        await store.fetch(claim_of(BODY), JSON)


@pytest.mark.parametrize("remains", ["nothing", "an empty folder"])
async def test_a_disk_that_is_not_mounted_is_waited_for_and_not_written_beside(
    tmp_path: Path, remains: str
) -> None:
    folder = tmp_path / "blobs"
    store, fresh = BlobStore(str(folder)), BlobStore(str(folder))
    claim = await store.put(BODY, JSON)
    folder.rename(tmp_path / "away")
    if remains == "an empty folder":
        folder.mkdir()
    for call in (store.put(b"another", JSON), store.fetch(claim, JSON), fresh.fetch(claim, JSON)):
        with pytest.raises(BlobUnreachable):
            await call
    assert not list(folder.glob("*"))
    shutil.rmtree(folder, ignore_errors=True)
    (tmp_path / "away").rename(folder)
    assert await store.fetch(await store.put(b"another", JSON), JSON) == b"another"
    assert await fresh.fetch(claim, JSON) == BODY


@pytest.mark.parametrize("found", [b"", BODY[:-1], BODY + b"!", BODY.upper()])
async def test_a_blob_that_changed_is_not_given_out(tmp_path: Path, found: bytes) -> None:
    store = BlobStore(str(tmp_path))
    claim = await store.put(BODY, JSON)
    (tmp_path / claim.address).write_bytes(found)
    with pytest.raises(BlobChanged, match="not the body that was published"):
        await store.fetch(claim, JSON)


async def test_a_body_does_not_pass_under_another_content_type(store: BlobStore) -> None:
    claim = await store.put(BODY, JSON)
    with pytest.raises(BlobChanged):
        await store.fetch(claim, PROTOBUF)


async def test_a_claim_that_lies_about_the_size_does_not_pass(store: BlobStore) -> None:
    claim = await store.put(BODY, JSON)
    for size in (0, len(BODY) - 1, len(BODY) + 1):
        with pytest.raises(BlobChanged):
            await store.fetch(structs.replace(claim, size=size), JSON)


async def test_bodies_and_claims_above_the_limit_are_refused_with_the_numbers(store: BlobStore) -> None:
    with pytest.raises(BlobRefused, match=r"10001 bytes.*10000"):
        await store.put(b"x" * 10_001, JSON)
    for size in (10_001, -1):
        with pytest.raises(BlobRefused, match="10000"):
            await store.fetch(structs.replace(claim_of(BODY), size=size), JSON)


async def test_a_store_that_hangs_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(str(tmp_path), patience_s=0.01)
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.2))
    with pytest.raises(BlobUnreachable, match=r"within 0\.01 s"):
        await store.put(BODY, JSON)


@pytest.mark.parametrize("url", ["nosuch://folder", "/", "file:///", "memory://", ""])
def test_a_url_that_is_no_folder_of_a_store_is_refused_at_once(url: str) -> None:
    with pytest.raises(BlobError):
        BlobStore(url)


def test_a_password_in_the_url_is_not_repeated() -> None:
    with pytest.raises(BlobError) as refused:
        BlobStore("nosuch://user:secret@host/folder")
    assert "secret" not in str(refused.value)
    assert "host/folder" in str(refused.value)


# ---------------------------------------------------------------------- a publisher chooses what we read?


@pytest.mark.parametrize(
    "address",
    [
        "/etc/passwd",
        "../outside",
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "s3://somebody/else",
        "",
        ".",
        "secret",
    ],
)
async def test_nothing_but_the_blob_of_the_claims_own_hash_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Even with the right size and hash of what lies there."""
    for place in (tmp_path / "outside", tmp_path / "store" / "secret"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(BODY)
    store = BlobStore(str(tmp_path / "store"))
    monkeypatch.setattr(store, "_read", lambda _: pytest.fail("it was read"))
    with pytest.raises(BlobRefused, match="not that of the claim's hash"):
        await store.fetch(claim_of(BODY, address=address), JSON)


async def test_a_claims_hash_makes_no_path_out_of_the_store(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path / "store"))
    await store.put(BODY, JSON)
    for body_hash in (b"../../etc/passwd", b"", b"/"):
        with pytest.raises(BlobRefused):
            await store.fetch(Claim(address_of(body_hash), body_hash, 5), JSON)


# ------------------------------------------------------------------------------------------------- sweeping


async def test_a_sweep_drops_what_is_old_and_what_writers_left_and_nothing_else(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path))
    old, again, young = [await store.put(body, JSON) for body in (b"old", b"again", b"young")]
    left = tmp_path / f"{old.address}.0123456789abcdef.part"
    theirs = tmp_path / "notes.txt"
    for path in (left, theirs):
        path.write_text("hello")
    for path in (tmp_path / old.address, tmp_path / again.address, left, theirs):
        os.utime(path, (1_000, 1_000))
    await store.put(b"again", JSON)
    assert await store.sweep(3600) == 2
    assert theirs.exists()
    assert not left.exists()
    assert [await store.fetch(claim, JSON) for claim in (again, young)] == [b"again", b"young"]
    with pytest.raises(BlobMissing):
        await store.fetch(old, JSON)


async def test_a_sweep_of_a_store_that_was_never_used_finds_nothing(store: BlobStore) -> None:
    assert await store.sweep(0) == 0


# ------------------------------------------------------------------------------------------- check in, out


async def test_a_large_body_leaves_its_message_and_comes_back(store: BlobStore) -> None:
    message = Message(BODY, request_id="r", headers={"a": "b"})
    travelling = await check_in(message, store)
    assert travelling.body == b""
    assert travelling.body_hash == message.body_hash
    assert await check_out(travelling, store) == message


async def test_a_body_up_to_the_threshold_stays(store: BlobStore) -> None:
    message = Message(b"x" * 100)
    assert await check_in(message, store) is message
    assert await check_out(message, store) is message
    assert (await check_in(structs.replace(message, body=b"x" * 101), store)).claim is not None


async def test_what_is_checked_in_is_not_checked_in_again(store: BlobStore) -> None:
    travelling = await check_in(Message(BODY), store)
    assert await check_in(travelling, store) is travelling


async def test_without_a_store_bodies_stay_and_claims_are_refused_with_what_to_do(store: BlobStore) -> None:
    message = Message(BODY)
    assert await check_in(message, None) is message
    with pytest.raises(BlobRefused, match="--blobs"):
        await check_out(await check_in(message, store), None)
