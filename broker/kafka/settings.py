"""What an installation on Kafka can set: security, the shape of its topics, how long things are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.broker.errors import BrokerError

_DAY_MS = 24 * 60 * 60 * 1000
_LONGEST_KEPT_MS = LONGEST_KEPT_S * 1000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DELAY = re.compile(r"([1-9][0-9]{0,5})(ms|s|m|h)")
_WHOLE = re.compile(r"[0-9]{1,18}")
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,200}")

SecurityValue: TypeAlias = str | bool
# What kafka-python is given as it stands. Its other options are ours to choose.
SECURITY_OPTIONS = frozenset(
    {
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_name",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "ssl_check_hostname",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_crlfile",
        "ssl_ciphers",
    }
)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")


@dataclass(frozen=True, slots=True)
class Delay:
    """A set length of waiting, which has topics of its own. `name` is how it is written: `30s`."""

    name: str
    ms: int


def parse_delay(text: str) -> Delay:
    """Raises BrokerError for a text that is no length of time."""
    parts = _DELAY.fullmatch(text)
    if parts is None:
        raise BrokerError(f"{text[:40]!r} is no length of a delay; write 500ms, 5s, 2m or 1h")
    return Delay(text, int(parts[1]) * _UNITS_MS[parts[2]])


_ADDED_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Times in milliseconds, sizes in bytes.

    `servers`: `host:port` of nodes to ask first. `security`: options for kafka-python.
    `partitions`: of each lane whose topics are made by us; a number once set is never changed by us.
    `replication`: None for 3 where there are three nodes, else 1. `delays`: how long a retry can wait.
    `results`: `exactly_once` settles in transactions; `at_least_once` has a lower latency, and after a crash
    a line may stand in a result topic twice.
    `group_instance_id`: the name of a static member (one for each process), or None.
    `max_message_bytes`: the largest record of our topics.
    `log_ms`: how long a request's log and its marks are kept after they were written: the longest deadline
    and a day. `reader_margin_ms`: how long before its request was made a reader starts, so that it sees the
    epoch in force: a session and 10 s. `read_partitions`: how many partitions of a lane a process spreads its
    own requests over, and so has to read. `ring_bytes`: recent events kept for readers, per partition read.
    """

    servers: tuple[str, ...]
    security: Mapping[str, SecurityValue] = field(default_factory=dict, repr=False)
    partitions: int = 16
    replication: int | None = None
    delays: tuple[Delay, ...] = (
        Delay("5s", 5_000),
        Delay("30s", 30_000),
        Delay("2m", 120_000),
        Delay("10m", 600_000),
    )
    results: Literal["exactly_once", "at_least_once"] = "exactly_once"
    group_instance_id: str | None = None
    max_message_bytes: int = 8 << 20
    log_ms: int = 8 * _DAY_MS
    results_ms: int = 7 * _DAY_MS
    reply_ms: int = 7 * _DAY_MS
    reader_margin_ms: int = 60_000
    read_partitions: int = 8
    ring_bytes: int = 4 << 20

    @property
    def max_sent_bytes(self) -> int:
        """The largest record that we send: of a message as large as is allowed, with the headers that it
        gets on its way, or with a short line beside its own headers. Topics take more than that."""
        return self.max_message_bytes + _ADDED_BYTES

    @property
    def max_taken_bytes(self) -> int:
        """The largest record that we take. Others may write more: a topic counts compressed bytes. What we
        could not send on must not begin: it could not wait, nor go to another pool."""
        return self.max_message_bytes + _ADDED_BYTES // 2

    def delay_for(self, ms: int) -> Delay:
        """The shortest delay that is long enough, or the longest there is."""
        return next((delay for delay in self.delays if delay.ms >= ms), self.delays[-1])


def parse_settings(servers: tuple[str, ...], options: Mapping[str, str]) -> KafkaSettings:
    """Settings from texts, as they stand in an address or on a command line. A name may be written with `-`
    or `_`. Raises BrokerError with a sentence for what is unknown or makes no sense; no value of a security
    option stands in it."""
    settings, security = KafkaSettings(servers), dict[str, SecurityValue]()
    for written, value in options.items():
        name = written.strip().replace("-", "_")
        if name in SECURITY_OPTIONS:
            security[name] = _security_value(name, value)
        elif name in _PARSERS:
            settings = _PARSERS[name](settings, name, value.strip())
        else:
            known = ", ".join(sorted(SECURITY_OPTIONS | _PARSERS.keys()))
            raise BrokerError(f"the broker option {written[:60]!r} is not known; these are: {known}")
    return replace(settings, security=_checked_security(security))


def _security_value(name: str, value: str) -> SecurityValue:
    if name == "ssl_check_hostname":
        if value.lower() not in ("true", "false"):
            raise BrokerError("the broker option ssl_check_hostname takes `true` or `false`")
        return value.lower() == "true"
    if name == "security_protocol":
        return _one_of(name, value.upper(), _PROTOCOLS)
    if name == "sasl_mechanism":
        return _one_of(name, value.upper(), _MECHANISMS)
    return value


def _checked_security(security: dict[str, SecurityValue]) -> dict[str, SecurityValue]:
    """Options that belong together. kafka-python would ignore those that the protocol does not use."""
    protocol = str(security.get("security_protocol", "PLAINTEXT"))
    for family, needed in (("sasl_", "SASL_SSL or SASL_PLAINTEXT"), ("ssl_", "SSL or SASL_SSL")):
        given = next((name for name in security if name.startswith(family)), None)
        if given is not None and family[:-1].upper() not in protocol.split("_"):
            raise BrokerError(f"the broker option {given} needs security_protocol={needed}")
    if "SASL" in protocol:
        mechanism = security.setdefault("sasl_mechanism", "PLAIN")
        for name in ("sasl_plain_username", "sasl_plain_password"):
            if mechanism != "GSSAPI" and not security.get(name):
                raise BrokerError(f"security_protocol={protocol} with {mechanism} needs the option {name}")
    return security


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BrokerError(f"the broker option {name} takes one of {', '.join(allowed)}")
    return value


_Parser: TypeAlias = Callable[[KafkaSettings, str, str], KafkaSettings]


def _number(low: int, high: int) -> _Parser:
    def parse(settings: KafkaSettings, name: str, value: str) -> KafkaSettings:
        if not (_WHOLE.fullmatch(value) and low <= int(value) <= high):
            raise BrokerError(
                f"the broker option {name}={value[:40]} must be a whole number from {low} to {high}"
            )
        changed: Any = {name: int(value)}  # the names of number fields only, see `_PARSERS`
        return replace(settings, **changed)

    return parse


def _delays(settings: KafkaSettings, name: str, value: str) -> KafkaSettings:
    """Separated by blanks; sorted by length."""
    delays = sorted((parse_delay(text) for text in dict.fromkeys(value.split())), key=lambda d: d.ms)
    if not delays:
        raise BrokerError(f"the broker option {name} needs at least one length, as in `5s 30s 2m 10m`")
    return replace(settings, delays=tuple(delays))


def _results(settings: KafkaSettings, name: str, value: str) -> KafkaSettings:
    if value == "exactly_once":
        return replace(settings, results="exactly_once")
    if value == "at_least_once":
        return replace(settings, results="at_least_once")
    raise BrokerError(f"the broker option {name} takes one of exactly_once, at_least_once")


def _instance(settings: KafkaSettings, name: str, value: str) -> KafkaSettings:
    if not _INSTANCE.fullmatch(value) or value in (".", ".."):
        raise BrokerError(f"the broker option {name} takes letters, digits, `.`, `_` and `-`, 200 at most")
    return replace(settings, group_instance_id=value)


_PARSERS: dict[str, _Parser] = {
    "partitions": _number(1, 1 << 14),  # what fits the place in a request id
    "replication": _number(1, 99),
    "delays": _delays,
    "results": _results,
    "group_instance_id": _instance,
    "max_message_bytes": _number(1 << 16, 64 << 20),
    "log_ms": _number(60_000, _LONGEST_KEPT_MS),
    "results_ms": _number(60_000, _LONGEST_KEPT_MS),
    "reply_ms": _number(60_000, _LONGEST_KEPT_MS),
    "reader_margin_ms": _number(0, _DAY_MS),
    "read_partitions": _number(1, 1 << 14),
    "ring_bytes": _number(1 << 16, 1 << 40),
}
