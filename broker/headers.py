"""The headers that a message travels with, the same on every broker: Kafka's headers, Redis' further fields.

How each broker reads them back is its codec's own matter, since foreign clients write them, too.
"""

from __future__ import annotations

from headrace.broker.message import JSON, Message

CLAIM, CLAIM_HASH, CLAIM_SIZE = "headrace-claim", "headrace-claim-hash", "headrace-claim-size"


def message_headers(message: Message) -> dict[str, str]:
    """All that is set and has a meaning for us; what else the publisher sent stands in `message.headers`."""
    headers: dict[str, str] = {}
    if message.request_id is not None:
        headers["request-id"] = message.request_id
    if message.tenant:
        headers["tenant"] = message.tenant
    if message.content_type != JSON:
        headers["content-type"] = message.content_type
    if message.deadline_ms is not None:
        headers["deadline"] = str(message.deadline_ms)
    if message.queue_timeout_ms is not None:
        headers["queue-timeout"] = str(message.queue_timeout_ms)
    if message.reply_to is not None:
        headers["reply-to"] = message.reply_to
    if message.stream:
        headers["stream"] = "true"
    if (claim := message.claim) is not None:
        headers |= {CLAIM: claim.address, CLAIM_HASH: claim.body_hash.hex(), CLAIM_SIZE: str(claim.size)}
    return headers
