"""Reads the evidence from Redis or Valkey with plain commands, key by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from redis import Redis

from tests.faults.checker.events import NoEvent, decode
from tests.faults.checker.evidence import Evidence, Key, Letter, read_line

_PAGE = 1000


def gather_redis(url: str, prefix: str = "headrace") -> Evidence:
    """All that stands under the prefix."""
    with Redis.from_url(url, socket_timeout=30, protocol=2) as redis:
        return _Look(redis, prefix).gather()


class _Look:
    """One look at the server. Results are typed loosely by redis-py; each is checked where it is used."""

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis, self._prefix, self._evidence = redis, prefix, Evidence()
        self._states: dict[Key, str] = {}

    def gather(self) -> Evidence:
        readers: list[tuple[str, Callable[[str, str], None]]] = [
            (r"events:(.*)", self._read_log),
            (r"request:(.*)", self._read_index),
            (r"requests\.(.*)", self._read_queue),
            (r"(results|reply\..*)", self._read_lines),
            (r"(dlq)", self._read_letters),
            (r"(retry)", self._read_retries),
            (r"(retry\.messages)", self._read_parked),
        ]
        for key in sorted(self._keys()):
            for pattern, read in readers:
                found = re.fullmatch(re.escape(f"{self._prefix}.") + pattern, key, re.DOTALL)
                if found:
                    read(key, found[1])
        self._compare_index()
        return self._evidence

    def _keys(self) -> Iterator[str]:
        glob = re.sub(r"([\[\]*?\\])", r"\\\1", self._prefix)
        for raw in self._redis.scan_iter(f"{glob}.*", count=_PAGE):
            yield raw.decode()

    def _entries(self, stream: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        start = "-"
        while page := self._redis.xrange(stream, start, "+", count=_PAGE):
            for raw, fields in page:
                yield raw.decode(), fields
            start = f"({page[-1][0].decode()}"

    def _read_log(self, key: str, name: str) -> None:
        events = []
        for entry, fields in self._entries(key):
            try:
                events.append(decode(fields[b"event"]))
            except (KeyError, NoEvent) as error:
                self._evidence.broken.append(f"{key} {entry}: {error!r}")
        self._evidence.logs[_key(name)] = events

    def _read_index(self, key: str, name: str) -> None:
        self._states[_key(name)] = (self._redis.hget(key, "state") or b"").decode()

    def _read_queue(self, key: str, lane: str) -> None:
        """A settled delivery is acknowledged and deleted; whatever stands here is somebody's, or nobody's."""
        owners: dict[str, str] = {}
        for group in self._redis.xinfo_groups(key):
            name = group["name"].decode()
            for pending in self._redis.xpending_range(key, name, "-", "+", max(1, group["pending"])):
                owners[pending["message_id"].decode()] = pending["consumer"].decode()
        for entry, _ in self._entries(key):
            held = f"held by {owners[entry]}" if entry in owners else "taken by nobody"
            self._evidence.leases.append(f"{key} {entry} is {held}")
        gone = owners.keys() - {entry for entry, _ in self._entries(key)}
        self._evidence.leases += [f"{key} {entry} is pending, but deleted" for entry in sorted(gone)]

    def _read_lines(self, key: str, name: str) -> None:
        for entry, fields in self._entries(key):
            topic = "" if name == "results" else key
            try:
                self._evidence.lines.append(read_line(topic, _text(fields), fields[b"body"]))
            except (KeyError, ValueError) as error:
                self._evidence.broken.append(f"{key} {entry}: {error}")

    def _read_letters(self, key: str, name: str) -> None:
        for _, fields in self._entries(key):
            texts = _text(fields)
            origin = texts.get("origin", "")
            request = Key(texts.get("tenant", ""), texts.get("request-id") or origin)
            letter = Letter(request, origin, texts.get("reason", ""), fields.get(b"body", b""))
            self._evidence.letters.append(letter)

    def _read_retries(self, key: str, name: str) -> None:
        parked = {raw.decode() for raw, _ in self._redis.zscan_iter(key)}
        self._evidence.leases += [f"{position} waits for a retry" for position in sorted(parked)]

    def _read_parked(self, key: str, name: str) -> None:
        due = f"{self._prefix}.retry"
        for raw in self._redis.hkeys(key):
            if self._redis.zscore(due, raw) is None:
                self._evidence.remains.append(f"{raw.decode()} is parked, and no time is set for it")

    def _compare_index(self) -> None:
        """An index says `ended` exactly where the log says so."""
        for key, state in self._states.items():
            events = self._evidence.logs.get(key, [])
            ended = any(event.kind in ("finished", "failed") for event in events)
            if state and ended != (state == "ended"):
                log = "has" if ended else "has no"
                self._evidence.remains.append(f"{key}: the index says {state}, its log {log} terminal record")


def _key(name: str) -> Key:
    tenant, _, request_id = name.partition(":")
    return Key(tenant.replace("%3A", ":").replace("%25", "%"), request_id)


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
