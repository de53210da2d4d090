"""Options that several commands share, and what they mean when they are left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace.broker.bounds import LONGEST_GRACE_S, LONGEST_KEPT_S, LONGEST_LEASE_S
from headrace.broker.names import POOL
from headrace.cli.broker_options import parse_options, parse_variable, with_options
from headrace.cli.errors import Mistake
from headrace.cli.numbers import number
from headrace.cli.settings import Environment, read_environment
from headrace.producer.backoff import RetryPolicy

LONGEST_MODEL_NAME = 200
# Somebody sits at the terminal: better to be told soon that nobody answers.
IMPATIENT = RetryPolicy(longest_s=1.0, patience_s=8.0)

Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="Address of the queue, redis://, unix:// or kafka:// (or HEADRACE_BROKER).",
        show_default=False,
    ),
]
BrokerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--broker-option",
        metavar="NAME=VALUE",
        help="SASL, TLS and other options of the queue; repeat it (or HEADRACE_BROKER_OPTIONS).",
        show_default=False,
    ),
]
Grpc = Annotated[
    str | None,
    typer.Option(
        "--grpc",
        metavar="HOST:PORT",
        help="Ask this gateway instead of the broker (or HEADRACE_GRPC).",
        show_default=False,
    ),
]

Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="PREFIX",
        help="Prefix of all names on the broker (or HEADRACE_PREFIX).",
        show_default=False,
    ),
]

Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="POOL",
        help="Consumers that serve one set of models; default: those without a name (or HEADRACE_POOL).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For scripts.")]

Lease = Annotated[
    float,
    number(
        low=0.1,
        high=LONGEST_LEASE_S,
        metavar="SECONDS",
        text="Seconds after a crash until others take its requests.",
    ),
]
Grace = Annotated[
    float,
    number(low=0, high=LONGEST_GRACE_S, metavar="SECONDS", text="Seconds to finish what runs when stopped."),
]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0: any free one.")]
LogRetention = Annotated[
    float,
    number(
        low=1,
        high=LONGEST_KEPT_S,
        metavar="SECONDS",
        text="How long a finished request can still be watched.",
    ),
]
ServedModelNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="What requests may call the model; repeat it for further names. Default: the model's own name.",
        show_default=False,
    ),
]
Tenant = Annotated[str, typer.Option(metavar="TENANT", help="Whose request it is, where tenants are named.")]
ReadyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write endpoints and pids here once all is healthy.")
]


class Where(NamedTuple):
    """A broker, with its options in the address, which may hold a password; and the prefix of its names."""

    url: str
    prefix: str


def where(broker: str | None, given: Sequence[str] | None, prefix_given: str | None) -> Where:
    """What the three options that nearly all commands have say together with the environment; raises Mistake
    where no broker is named."""
    environment = read_environment()
    return Where(broker_url(broker, given, environment), prefix(prefix_given, environment))


def broker_url(option: str | None, given: Sequence[str] | None, environment: Environment) -> str:
    """The broker that a command shall use, its options included; raises Mistake where none is named."""
    if option is None and environment.broker is None:
        raise Mistake("which broker? Pass --broker URL or set HEADRACE_BROKER; `headrace up` prints its own")
    url = (
        option if environment.broker is None or option is not None else environment.broker.get_secret_value()
    )
    return with_options(url or "", broker_options(given, environment))


def broker_options(given: Sequence[str] | None, environment: Environment) -> dict[str, str]:
    """Options of the broker; those of the command line win."""
    inherited = parse_variable(environment.broker_options.get_secret_value())
    return {**inherited, **parse_options(given or ())}


def pool(option: str | None, environment: Environment) -> str:
    """The pool that a command is about; raises Mistake for what is no name of a pool."""
    name = environment.pool if option is None else option
    if name and not POOL.fullmatch(name):
        raise Mistake(f"{name[:80]!r} is no name of a pool; use 1 to 64 letters, digits, - and _")
    return name


def served_names(given: Sequence[str] | None) -> tuple[str, ...]:
    """What requests may call the model; raises Mistake for what none could write."""
    for name in given or ():
        if not name.strip() or not name.isprintable() or len(name) > LONGEST_MODEL_NAME:
            raise Mistake(
                f"--served-model-name takes 1 to {LONGEST_MODEL_NAME} printable characters, not {name[:40]!r}"
            )
    return tuple(given or ())


def prefix(option: str | None, environment: Environment) -> str:
    return environment.prefix if option is None else option


def gateway_target(grpc: str | None, broker: str | None, environment: Environment) -> str | None:
    """The gateway to ask, or None for the broker: what the command line names goes before the environment,
    and the broker before the gateway."""
    if grpc is not None or broker is not None:
        return grpc
    return environment.grpc if environment.broker is None else None


def refuse_tenant(tenant: str) -> None:
    """A gateway knows its callers' tenant by itself: only the broker can be asked for another's."""
    if tenant:
        raise Mistake("--tenant goes with --broker: a gateway serves the default tenant only")
