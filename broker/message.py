"""A request as it travels: body, headers, and its identity."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping

import msgspec

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
DEFAULT_TENANT = ""
DEFAULT_POOL = ""


class Lane(enum.StrEnum):
    """Service class of a request, in order of preference."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"
    BACKGROUND = "background"


class RequestRef(msgspec.Struct, frozen=True):
    """Names one request and with it the place of its log. The id is unique within the tenant."""

    request_id: str
    tenant: str = DEFAULT_TENANT


class Claim(msgspec.Struct, frozen=True):
    """A body that lies in the blob store (claim check): where, and what it must turn out to be.

    `address`: the store's name of it. `body_hash`: that of the message with its whole body. `size`: bytes.
    """

    address: str
    body_hash: bytes
    size: int


class Message(msgspec.Struct, frozen=True):
    """One request on a queue.

    `request_id` is None where the publisher gave none: the record's position becomes the id, and is kept
    through retries. `body` is an OpenAI batch line (JSON) or an `InferenceRequest` (protobuf).
    `pool` names the consumers it is for. `deadline_ms` is unix time; `queue_timeout_ms` how long it may wait
    for its start, where the lane's policy lets a request say so. `reply_to` names a result topic; `stream`
    asks for prompt deltas (in the log and, with `reply_to`, on that topic). `claim`: the body lies in the
    blob store and `body` is empty. `headers` holds what else the publisher sent; it travels through to the
    result.
    """

    body: bytes
    request_id: str | None = None
    lane: Lane = Lane.STANDARD
    tenant: str = DEFAULT_TENANT
    content_type: str = JSON
    deadline_ms: int | None = None
    reply_to: str | None = None
    stream: bool = False
    headers: Mapping[str, str] = {}
    pool: str = DEFAULT_POOL
    queue_timeout_ms: int | None = None
    claim: Claim | None = None

    @property
    def body_hash(self) -> bytes:
        """What "same content" means: SHA-256 over content type and body, wherever the body lies."""
        if self.claim is not None:
            return self.claim.body_hash
        return hashlib.sha256(self.content_type.encode() + b"\0" + self.body).digest()


class Delivery(msgspec.Struct, frozen=True):
    """One hand-over of a message to this consumer, held under a lease until it is settled.

    `position` is where the request was first published ("stream/entry" or "topic/partition/offset"): it
    names the delivery in `started` and stays the same through retries and redeliveries. `record` is where the
    copy stands that was handed over: twins that a forwarded retry left have one position, and are two
    records. `ref.request_id` equals `position` where the publisher gave no id. `handle` is the adapter's own;
    nobody else reads it. `published_ms` is the broker's unix time of the first publish. `redelivered`:
    somebody had it before, or may have had it (Kafka counts no deliveries: what a former owner of its
    partition may have held).
    """

    message: Message
    ref: RequestRef
    position: str
    record: str
    published_ms: int
    handle: object
    redelivered: bool = False
