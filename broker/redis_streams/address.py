"""What the address of a server may say, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace.broker.errors import BrokerError

# Others are ours to choose (time limits, retries, decoding), and redis-py would let the address win.
_PARAMETER = re.compile(r"db|username|password|client_name|ssl_[a-z_]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_DATABASE = re.compile(rf"/?|/{_NUMBER.pattern}")


def client_for(url: str, **settings: Any) -> Redis:
    """A client with our settings, not connected yet. Raises BrokerError for an address that is none."""
    _check(url)
    try:
        client = Redis.from_url(url, **settings)
        # Only a connection that is being made looks at all that the address says.
        make: Callable[[], object] = client.connection_pool.make_connection
        make()
    except (ValueError, TypeError, RedisError) as error:
        raise BrokerError(f"{address_of(url)} is no usable broker address: {error}") from error
    return client


def address_of(url: str) -> str:
    """The address for messages: without user, password and query, which may hold a password too."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check(url: str) -> None:
    parts, shown = urlsplit(url), address_of(url)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if not _PARAMETER.fullmatch(name):
            raise BrokerError(
                f"{shown} is no usable broker address: the parameter {name[:40]!r} is not known; it may hold "
                "db, username, password, client_name and ssl_…"
            )
        if name == "db" and not _NUMBER.fullmatch(value):
            raise BrokerError(
                f"{shown} is no usable broker address: the parameter 'db' is the number of a database, "
                f"and db={value[:40]} is none"
            )
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise BrokerError(
            f"{shown} is no usable broker address: behind the host stands the number of a database, as in /0"
        )
