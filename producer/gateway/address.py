"""Whether an address can be listened on, and why not: gRPC only says that it failed."""

from __future__ import annotations

import errno
import socket


def address(host: str, port: int) -> str:
    """As gRPC wants it; an IPv6 address goes into brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def obstacle(host: str, port: int) -> str | None:
    """What keeps us from listening there, as the end of a sentence; None where nothing does."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(place)
            probe.listen(1)
    except (OSError, UnicodeError) as error:
        return _explain(error, host)
    return None


def _explain(error: Exception, host: str) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "the port is taken by another program; stop it, or choose another --grpc-port"
        case errno.EACCES:
            return "this port needs more rights; choose a --grpc-port above 1023"
    return f"{host} is no address of this machine; choose another --host"
