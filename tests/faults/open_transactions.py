"""Consumers as the broker sees them: how many are members, and whose transaction is open just now."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from kafka import KafkaAdminClient

_OPEN = "Ongoing"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """`name`: the transactional id, which ends with the consumer's name. `began_ms`: by the broker's
    clock."""

    name: str
    began_ms: int
    has_offsets: bool


class OpenTransactions:
    """All methods block."""

    def __init__(self, url: str, prefix: str) -> None:
        servers = urlsplit(url).netloc.rpartition("@")[2].split(",")
        self._admin: Any = KafkaAdminClient(bootstrap_servers=servers)
        self._prefix = prefix

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def members(self) -> int:
        """How many consumers the group has; 0 while it is changing."""
        group = f"{self._prefix}.consumers"
        found = self._admin.describe_groups([group])[group]
        return len(found["members"]) if found["group_state"] == "Stable" else 0

    def first(self) -> OpenTransaction | None:
        """Any that is open, described by its name only."""
        for listings in self._admin.list_transactions(state_filters=[_OPEN]).values():
            for listing in listings:
                if listing.transactional_id.startswith(f"{self._prefix}."):
                    return OpenTransaction(listing.transactional_id, 0, False)
        return None

    def described(self, name: str) -> OpenTransaction | None:
        """The open one of that name."""
        found = self._admin.describe_transactions([name])[name]
        if found.state.value != _OPEN:
            return None
        topics = {partition.topic for partition in found.topic_partitions}
        return OpenTransaction(name, found.transaction_start_time_ms, "__consumer_offsets" in topics)
