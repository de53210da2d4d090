"""From an address to a broker."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlsplit

from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerError
from headrace.broker.names import Names
from headrace.broker.redis_streams.settings import Retention

logger = logging.getLogger(__name__)

_REDIS = ("redis", "rediss", "unix")
_KAFKA = "kafka"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


class _Adapter(Broker, Protocol):
    warnings: list[str]

    async def start(self) -> None: ...


async def connect(
    url: str,
    *,
    prefix: str = "headrace",
    retention: Retention | None = None,
    options: Mapping[str, str] | None = None,
) -> Broker:
    """Connects to the broker at `url` (`redis://`, `rediss://`, `unix:///path`, `kafka://host:port,…`) and
    looks whether it can be used. What it promises less than it could is logged, and stands in the adapter's
    `warnings`. `options`: further settings of a Kafka connection (`kafka.settings`), security among them;
    they add to those of the address and win over them.

    Raises BrokerUnavailable where nothing answers, BrokerRefused where the server cannot be used, and
    BrokerError for an address, a prefix or an option that is none.
    """
    scheme = _scheme(url)
    if not _PREFIX.fullmatch(prefix):
        raise BrokerError(f"the prefix {prefix[:100]!r} may hold letters, digits, `.`, `_` and `-` only")
    make = _kafka if scheme == _KAFKA else _redis
    broker = make(url, Names(prefix), retention, options or {})
    try:
        await broker.start()
    except BaseException:
        await broker.close()
        raise
    for warning in broker.warnings:
        logger.warning("%s", warning)
    return broker


def _scheme(url: str) -> str:
    """What kind of broker is meant; raises BrokerError for an address of none."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise BrokerError(f"{_shown(url)!r} is no usable broker address: {error}") from error
    known = ", ".join(f"{name}://" for name in (*_REDIS, _KAFKA))
    if not scheme or "://" not in url.partition("?")[0]:
        raise BrokerError(f"{_shown(url)!r} is no address of a broker; write one that begins with {known}")
    if scheme not in (*_REDIS, _KAFKA):
        raise BrokerError(f"no broker is known for addresses with {scheme}://; use one of {known}")
    return scheme


def _shown(url: str) -> str:
    """Without what may be a password."""
    return url.rpartition("@")[2].partition("?")[0][:200]


# Each imports its adapter only when it is asked for: nobody waits for a client library that is not used.


def _redis(url: str, names: Names, retention: Retention | None, options: Mapping[str, str]) -> _Adapter:
    from headrace.broker.redis_streams.adapter import RedisBroker

    if options:
        raise BrokerError(f"the broker option {min(options)[:60]!r} is for Kafka; Redis knows none")
    return RedisBroker(url, names, retention or Retention())


def _kafka(url: str, names: Names, retention: Retention | None, options: Mapping[str, str]) -> _Adapter:
    from headrace.broker.kafka.adapter import KafkaBroker
    from headrace.broker.kafka.address import parse_address

    settings = parse_address(url, options)
    if retention is not None:
        settings = replace(
            settings, log_ms=retention.log_ms, results_ms=retention.results_ms, reply_ms=retention.reply_ms
        )
    return KafkaBroker(settings, names)
