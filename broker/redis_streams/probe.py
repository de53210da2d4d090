"""What a server must have, and what it should have, looked at before anything is sent to it."""

from __future__ import annotations

import re

from headrace.broker.errors import BrokerRefused
from headrace.broker.redis_streams.link import Link, ServerError

_OLDEST = (6, 2)


async def check_server(link: Link) -> list[str]:
    """Warnings about what the server promises less than Headrace can; raises BrokerUnavailable where there
    is none, BrokerRefused where it cannot be used."""
    info = _fields(await link.call("INFO"))
    at = link.address
    if _version(info) < _OLDEST:
        raise BrokerRefused(
            f"{at} runs version {info.get('redis_version')}; Redis 6.2 or any Valkey is needed"
        )
    if info.get("cluster_enabled") == "1":
        raise BrokerRefused(f"{at} is a cluster; use a single server (with replicas), or Kafka to scale out")
    if info.get("role") == "slave":
        raise BrokerRefused(f"{at} is a read-only replica; connect to its primary")
    return _warnings(at, info, await _fsync(link))


def _warnings(at: str, info: dict[str, str], fsync: str) -> list[str]:
    warnings = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(
            f"{at} may evict requests when memory is short (maxmemory-policy {policy}); set it to noeviction"
        )
    if info.get("aof_enabled") == "0":
        warnings.append(
            f"{at} keeps no append-only file: what was accepted is lost when it is killed; set appendonly yes"
        )
    elif fsync in {"everysec", "no"}:
        warnings.append(
            f"{at} writes its append-only file late (appendfsync {fsync}): when it is killed, the last "
            "acknowledged writes may be lost; set appendfsync always"
        )
    return warnings


async def _fsync(link: Link) -> str:
    try:
        reply = await link.call("CONFIG", "GET", "appendfsync")
    except ServerError:  # hosted servers often forbid CONFIG
        return ""
    return reply[1].decode() if reply else ""


def _fields(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _version(info: dict[str, str]) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", info.get("redis_version", ""))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
