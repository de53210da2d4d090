"""How a lane treats what waits in it: Triton's queue policy, for a queue that is shared and durable.

    batch:size=100000,timeout=3600,on-timeout=delay,may-shorten=yes

| setting       | meaning                                                                                 |
|---------------|-----------------------------------------------------------------------------------------|
| `size`        | requests that may wait; a gateway refuses more with RESOURCE_EXHAUSTED (not set: any)    |
| `timeout`     | seconds that a request may wait for its start (not set: for ever)                        |
| `on-timeout`  | `reject`: it fails as `queue_timeout`; `delay`: it is served after those that are in time |
| `may-shorten` | whether the header `queue-timeout` may set a shorter one (never a longer)                |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headrace.broker.message import Lane, Message


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The policy of one lane; the default lets everything wait for ever."""

    size: int | None = None
    timeout_ms: int | None = None
    on_timeout: Literal["reject", "delay"] = "reject"
    may_shorten: bool = True

    def timeout_of(self, message: Message) -> int | None:
        """Milliseconds that this message may wait for its start; None: any time."""
        own = message.queue_timeout_ms if self.may_shorten else None
        limits = [limit for limit in (self.timeout_ms, own) if limit is not None]
        return min(limits, default=None)


QueuePolicies = Mapping[Lane, QueuePolicy]


def parse_policy(text: str) -> tuple[Lane, QueuePolicy]:
    """One line of the form above. Raises ValueError with a sentence that says what is wrong."""
    name, _, settings = text.partition(":")
    if name not in tuple(Lane):
        raise ValueError(f"{name[:40]!r} is no lane; use one of {', '.join(Lane)}")
    policy = QueuePolicy()
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        policy = _set(policy, key.strip(), value.strip())
    return Lane(name), policy


def _set(policy: QueuePolicy, key: str, value: str) -> QueuePolicy:
    match key:
        case "size":
            return replace(policy, size=int(_number(key, value)))
        case "timeout":
            return replace(policy, timeout_ms=round(_number(key, value) * 1000))
        case "on-timeout" if value == "reject" or value == "delay":
            return replace(policy, on_timeout="reject" if value == "reject" else "delay")
        case "may-shorten" if value in ("yes", "no"):
            return replace(policy, may_shorten=value == "yes")
        case "on-timeout":
            raise ValueError(f"on-timeout={value[:40]} is not known; use reject or delay")
        case "may-shorten":
            raise ValueError(f"may-shorten={value[:40]} is not known; use yes or no")
    raise ValueError(f"{key[:40]!r} is no setting of a lane; use size, timeout, on-timeout or may-shorten")


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise ValueError(f"{key}={value[:40]} is no number from 0 on")
    return number
