"""Claim check: large bodies lie in a blob store, and their messages carry the address and the hash.

    publisher   body ──put──► store    message{claim} ──► queue ──► consumer ──fetch──► body

The address of a body is made from its hash, `<first two digits>/<all digits>` under the store's folder, so
putting the same body again is the same blob, and nobody can make a consumer read anything else: an address
that does not follow from the claim's own hash is never looked up. (Pattern: Hohpe and Woolf, "Claim Check".)

| what is wrong                                     | error             | worth a retry |
|---------------------------------------------------|-------------------|---------------|
| there is no such blob                             | `BlobMissing`     | no            |
| its bytes are not those of the claim              | `BlobChanged`     | no            |
| the claim's address or size is not acceptable     | `BlobRefused`     | no            |
| the store does not answer, or has no room         | `BlobUnreachable` | yes           |
| its folder is gone, or empty: not mounted now     | `BlobUnreachable` | yes           |

A blob is in the store, and on its disk, before its message is published. It may be dropped (`sweep`) once no
queue, retry or dead letter can hold the message any more. Putting it again makes it young again, unless a
sweep is just dropping it: sweep only what is well above the age at which the same body may be sent again.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import structs

from headrace.broker.blocking_calls import BlockingCalls
from headrace.broker.errors import BrokerError
from headrace.broker.message import Claim, Message

KIB: Final = 1 << 10
MIB: Final = 1 << 20
THRESHOLD: Final = 256 * KIB
LIMIT: Final = 64 * MIB
CALLS_AT_A_TIME: Final = 16

T = TypeVar("T")
_HASH_BYTES: Final = 32
_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}(\.[0-9a-f]{16}\.part)?")


class BlobError(BrokerError):
    """Base of all errors of the blob store; its text says what is wrong and what to do."""


class BlobMissing(BlobError):
    """The store has no blob of this name."""


class BlobChanged(BlobError):
    """The blob is not what was put there: its size or its hash differs."""


class BlobRefused(BlobError):
    """The body is too large, or the claim names something that is no blob of this store."""


class BlobUnreachable(BlobError):
    """The store does not answer, or cannot write; worth a retry with backoff."""


class BlobStore:
    """Bodies by their hash, in one folder of any file system that fsspec knows.

    `url`: a folder of this machine (`/srv/blobs`, `file:///srv/blobs`; all consumers must see the same one),
    or `s3://bucket/folder`, `gs://…`, `memory://…` (one process: tests). `options` go to the file system.
    Bodies above `threshold` bytes are to be checked in; none above `limit` is taken or fetched. A call that
    takes longer than `patience_s` seconds counts as no answer.

    File systems block, so all calls run in threads (`blocking_calls`). Raises BlobError for an URL that
    cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        threshold: int = THRESHOLD,
        limit: int = LIMIT,
        patience_s: float = 60.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.threshold = threshold
        self.limit = limit
        self._patience_s = patience_s
        self._calls = BlockingCalls("blob store", at_most=CALLS_AT_A_TIME, patience_s=patience_s)
        self._shown = _without_password(url)
        self._files, self._root = _open(url, self._shown, options or {})
        self._is_local = "file" in _protocols(self._files)
        self._was_used = False  # by us: its folder was there

    @property
    def folder(self) -> Path | None:
        """Where it is, on this machine; None for a store elsewhere."""
        return Path(self._root) if self._is_local else None

    def require_room(self) -> None:
        """Makes the folder where it is on this machine, and writes to it; raises BlobUnreachable where that
        is impossible. Blocks for a moment."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(b"?")
        except OSError as error:
            raise BlobUnreachable(
                f"the blob store {self._shown} cannot be written to ({error.strerror or error}); change its "
                "rights, or name another folder"
            ) from error

    async def put(self, body: bytes, content_type: str) -> Claim:
        """Stores the body of a message; it is durable, and whole for every reader, once this returns."""
        if len(body) > self.limit:
            raise BlobRefused(
                f"the body has {len(body)} bytes, more than the {self.limit} that the blob store takes; "
                "send less at a time"
            )
        return await self._in_thread(lambda: self._put(body, content_type))

    async def fetch(self, claim: Claim, content_type: str) -> bytes:
        """The body that `claim` stands for; `content_type` is that of its message, and part of the hash."""
        self._check(claim)
        return await self._in_thread(lambda: self._fetch(claim, content_type))

    async def sweep(self, older_than_s: float, now: Callable[[], float] = time.time) -> int:
        """Deletes blobs, and what interrupted writers left, put more than `older_than_s` seconds ago; returns
        how many. Files of others in the same folder are left alone."""
        return await self._in_thread(lambda: self._sweep(now() - older_than_s))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._calls.run(work)
        except BlobError:
            raise
        except TimeoutError as error:
            message = f"the blob store {self._shown} did not answer within {self._patience_s:g} s"
            raise BlobUnreachable(message) from error
        except Exception as error:  # each file system has exceptions of its own; all say the same to us
            raise BlobUnreachable(f"the blob store {self._shown} cannot be used now: {error}") from error

    # --------------------------------------------------------------------------------------- in a thread

    def _put(self, body: bytes, content_type: str) -> Claim:
        """Writes also where the blob is there already: that mends it, and makes it young for `sweep`."""
        body_hash = Message(body, content_type=content_type).body_hash
        address = address_of(body_hash)
        path = self._path(address)
        if self._is_local:
            self._require_folder()
            _write_whole(Path(path), body)
            self._was_used = True
        else:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, body)  # an object appears whole or not at all
        return Claim(address, body_hash, len(body))

    def _fetch(self, claim: Claim, content_type: str) -> bytes:
        body = self._read(claim)
        if len(body) != claim.size or Message(body, content_type=content_type).body_hash != claim.body_hash:
            raise BlobChanged(
                f"the blob {claim.address} in {self._shown} is not the body that was published; publish the "
                "request again"
            )
        return body

    def _read(self, claim: Claim) -> bytes:
        try:
            with self._files.open(self._path(claim.address), "rb") as file:
                body: bytes = file.read(claim.size + 1)  # a blob that has grown is not read to its end
        except FileNotFoundError:
            if self._is_local and _is_not_mounted(Path(self._root)):
                raise
            raise BlobMissing(
                f"the blob {claim.address} is not in {self._shown}; was it swept too early, or does the "
                "publisher use another store?"
            ) from None
        return body

    def _require_folder(self) -> None:
        """Makes it at the first write. Later it is there, or its disk is away: what was written in its place
        would be found by nobody once that is back."""
        folder = Path(self._root)
        if not self._was_used:
            folder.mkdir(parents=True, exist_ok=True)
        elif _is_not_mounted(folder):
            raise FileNotFoundError("its folder is gone, or empty; is its disk mounted?")

    def _sweep(self, before: float) -> int:
        names = [name for name in self._files.find(self._root) if self._is_ours(name)]
        return sum(self._drop_if_old(name, before) for name in names)

    def _drop_if_old(self, name: str, before: float) -> bool:
        try:
            if self._files.modified(name).timestamp() >= before:
                return False
            self._files.rm_file(name)
        except FileNotFoundError:
            return False  # another sweep was quicker
        return True

    def _is_ours(self, name: str) -> bool:
        return _BLOB.fullmatch(name.removeprefix(self._root).lstrip("/")) is not None

    def _path(self, address: str) -> str:
        return f"{self._root.rstrip('/')}/{address}"

    def _check(self, claim: Claim) -> None:
        if len(claim.body_hash) != _HASH_BYTES or claim.address != address_of(claim.body_hash):
            raise BlobRefused(
                f"the address {claim.address[:100]!r} is not that of the claim's hash; nothing but bodies in "
                "the blob store is read"
            )
        if not 0 <= claim.size <= self.limit:
            raise BlobRefused(
                f"the claim is for {claim.size} bytes, and the blob store holds up to {self.limit} a body"
            )


async def check_in(message: Message, store: BlobStore | None) -> Message:
    """The message to publish: a body above the store's threshold leaves. Without a store it stays."""
    if store is None or message.claim is not None or len(message.body) <= store.threshold:
        return message
    return structs.replace(message, body=b"", claim=await store.put(message.body, message.content_type))


async def check_out(message: Message, store: BlobStore | None) -> Message:
    """The message with its body, wherever that lay; its hash is the same."""
    if message.claim is None:
        return message
    if store is None:
        raise BlobRefused(
            "the body of this request lies in a blob store, and this consumer was given none; start it with "
            "--blobs and the URL that the publisher uses"
        )
    return structs.replace(message, body=await store.fetch(message.claim, message.content_type), claim=None)


def address_of(body_hash: bytes) -> str:
    """Where a body lies, relative to the store's folder. `body_hash` is `Message.body_hash`: SHA-256 over
    content type, a zero byte and the body."""
    digits = body_hash.hex()
    return f"{digits[:2]}/{digits}"


def _open(url: str, shown: str, options: dict[str, Any]) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # a third of a second, which those without a store need not wait

    if not url:
        raise BlobError("the URL of the blob store is empty; name a folder, or leave the store out")
    try:
        files, root = url_to_fs(url, **options)
    except ImportError as error:
        raise BlobError(f"the blob store {shown} needs a package that is not there: {error}") from error
    except (ValueError, TypeError) as error:
        raise BlobError(f"the blob store {shown} cannot be used: {error}") from error
    if not root.strip("/"):
        raise BlobError(f"the blob store {shown} names no folder; blobs go into one of their own")
    return files, root


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1) if parts.netloc else url


def _is_not_mounted(folder: Path) -> bool:
    """A store that was used has folders in it, for ever; the place of a disk that is not mounted has none."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True


def _write_whole(path: Path, body: bytes) -> None:
    """Readers see all of it or nothing, also after a crash: write beside, sync, rename, sync the folders.
    The store's folder is there, or this raises."""
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        with scratch.open("xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    _sync_folder(path.parent.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
