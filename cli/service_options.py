"""Options of consumers and gateways, from texts to the values that their settings take.

`headrace up` starts both as child processes, and passes the texts on as arguments. Addresses are not among
them: those may hold passwords, and go through the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from headrace.broker.blobs import THRESHOLD, BlobStore
from headrace.broker.message import Lane
from headrace.broker.queue_policy import QueuePolicy, parse_policy
from headrace.cli.errors import Mistake
from headrace.cli.numbers import MOST_BYTES, MOST_DEATHS, MOST_REQUESTS, number
from headrace.cli.settings import Environment
from headrace.consumer.settings import LEAST_WEIGHT, MOST_WEIGHT, WatchdogSettings
from headrace.producer.gateway.limits import GatewayLimits

LanePolicies = Annotated[
    list[str] | None,
    typer.Option(
        "--lane-policy",
        metavar="LANE:KEY=VALUE,…",
        help="size, timeout (s), on-timeout (reject, delay), may-shorten (yes, no) of a lane; repeat it.",
        show_default=False,
    ),
]
TenantWeights = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant-weight",
        metavar="NAME=W",
        help="Share of a tenant where several wait, 1 if it has none; repeat it.",
        show_default=False,
    ),
]
QuarantineAfter = Annotated[
    int,
    number(low=1, high=MOST_DEATHS, metavar="N", text="Deaths after which a request is tried alone."),
]
PoisonDeaths = Annotated[
    int, number(low=1, high=MOST_DEATHS, metavar="N", text="Deaths alone after which it is a dead letter.")
]
MaxQueuedRequests = Annotated[
    int,
    number(
        low=1,
        high=MOST_REQUESTS,
        metavar="N",
        text="Requests that a gateway has under way; it refuses more.",
    ),
]
MaxQueuedTokens = Annotated[
    int, number(low=1, high=MOST_BYTES, metavar="N", text="The same in tokens, as a gateway estimates them.")
]
Blobs = Annotated[
    str | None,
    typer.Option(
        "--blobs",
        metavar="URL",
        help="Store for large bodies: a folder, s3://…, gs://… (or HEADRACE_BLOBS). Default: none.",
        show_default=False,
    ),
]
BlobThreshold = Annotated[
    int,
    number(
        low=0, high=MOST_BYTES, metavar="BYTES", text="Bodies above this go to the store, if there is one."
    ),
]

BLOB_THRESHOLD = THRESHOLD
QUARANTINE_AFTER: int = WatchdogSettings.model_fields["quarantine_after"].default
POISON_DEATHS: int = WatchdogSettings.model_fields["poison_deaths"].default
LIMITS = GatewayLimits()


def lane_policies(texts: Sequence[str] | None) -> dict[Lane, QueuePolicy]:
    """Raises Mistake for a text that is no policy, and for a lane with two."""
    policies: dict[Lane, QueuePolicy] = {}
    for text in texts or ():
        try:
            lane, policy = parse_policy(text)
        except ValueError as error:
            raise Mistake(f"--lane-policy: {error}") from error
        if lane in policies:
            raise Mistake(f"--lane-policy: {lane.value} has two; write them as one, separated by commas")
        policies[lane] = policy
    return policies


def tenant_weights(texts: Sequence[str] | None) -> dict[str, float]:
    """Raises Mistake for a text that is no weight."""
    weights: dict[str, float] = {}
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = 0.0
        if not separator or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise Mistake(
                f"--tenant-weight takes NAME=NUMBER, the number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}; "
                f"{text[:60]!r} is none"
            )
        weights[name] = weight
    return weights


def blob_store(option: str | None, environment: Environment, *, writes: bool = False) -> str | None:
    """URL of the store for large bodies, if there is one. Raises BlobError for one that cannot be used;
    `writes`: also for a folder that cannot be written to, which is made where it is missing."""
    url = option
    if url is None and environment.blobs is not None:
        url = environment.blobs.get_secret_value()
    if url is not None:
        store = BlobStore(url)
        if writes:
            store.require_room()
    return url


def repeated(flag: str, values: Iterable[str] | None) -> tuple[str, ...]:
    """The arguments of an option that was given several times."""
    return tuple(part for value in values or () for part in (flag, value))
