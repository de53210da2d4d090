"""What the address of a cluster may say, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.broker.errors import BrokerError
from headrace.broker.kafka.settings import KafkaSettings, parse_settings

_PORT = 9092
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


def parse_address(url: str, options: Mapping[str, str] | None = None) -> KafkaSettings:
    """`kafka://[user:password@]host[:port][,host[:port]…][/?option=value&…]` as settings. `options` add to
    those of the address and win over them. Raises BrokerError for an address or an option that is none."""
    parts, shown = urlsplit(url), address_of(url)
    login, _, hosts = parts.netloc.rpartition("@")
    if parts.path not in ("", "/") or parts.fragment:
        raise BrokerError(
            f"{shown} is no usable broker address: nothing may stand behind the hosts but options"
        )
    servers = tuple(_server(text, shown) for text in hosts.split(","))
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    return parse_settings(servers, {**_login(login), **given, **(options or {})})


def address_of(url: str) -> str:
    """The address for messages: without user, password and options, which may hold a password too."""
    return f"kafka://{urlsplit(url).netloc.rpartition('@')[2]}"


def _server(text: str, shown: str) -> str:
    parts = _SERVER.fullmatch(text)
    port = int(parts[2] or _PORT) if parts else 0
    if parts is None or not 0 < port < 1 << 16:
        raise BrokerError(f"{shown} is no usable broker address: {text[:100]!r} is no host and port")
    return f"{parts[1]}:{port}"


def _login(login: str) -> dict[str, str]:
    user, _, password = login.partition(":")
    if not login:
        return {}
    return {"sasl_plain_username": unquote(user), "sasl_plain_password": unquote(password)}
