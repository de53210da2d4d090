"""From an address to a broker."""

from __future__ import annotations

import logging
import re
from urllib.parse import urlsplit

from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerError
from headrace.broker.names import Names
from headrace.broker.redis_streams.adapter import RedisBroker
from headrace.broker.redis_streams.settings import Retention

logger = logging.getLogger(__name__)

_REDIS = ("redis", "rediss", "unix")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


async def connect(url: str, *, prefix: str = "headrace", retention: Retention | None = None) -> Broker:
    """Connects to the broker at `url` (`redis://`, `rediss://`, `unix:///path`) and looks whether it can be
    used. What it promises less than it could is logged, and stands in the adapter's `warnings`.

    Raises BrokerUnavailable where nothing answers, BrokerRefused where the server cannot be used, and
    BrokerError for an address or a prefix that is none.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise BrokerError(f"{url.rpartition('@')[2][:200]!r} is no usable broker address: {error}") from error
    if scheme not in _REDIS:
        known = ", ".join(f"{name}://" for name in _REDIS)
        raise BrokerError(f"no broker is known for addresses with {scheme or 'no'}://; use one of {known}")
    if not _PREFIX.fullmatch(prefix):
        raise BrokerError(f"the prefix {prefix[:100]!r} may hold letters, digits, `.`, `_` and `-` only")
    broker = RedisBroker(url, Names(prefix), retention or Retention())
    try:
        await broker.start()
    except BaseException:
        await broker.close()
        raise
    for warning in broker.warnings:
        logger.warning("%s", warning)
    return broker
