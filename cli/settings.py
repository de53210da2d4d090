"""The environment, read here and nowhere else. Every `HEADRACE_*` variable stands for an option."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.broker.message import DEFAULT_POOL
from headrace.cli.errors import Mistake

ENV_PREFIX = "HEADRACE_"


class Environment(BaseSettings):
    """`broker`, `grpc`: where commands connect when no option says so. `broker_options`: NAME=VALUE,…, added
    to the address. `prefix`: of all names on the broker. `pool`: the consumers that a command is about.
    `blobs`: URL of the store for large bodies. `parent`: set by our own supervisor for its children, the
    process they must not outlive."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    broker: SecretStr | None = None
    broker_options: SecretStr = SecretStr("")
    grpc: str | None = None
    prefix: str = "headrace"
    pool: str = DEFAULT_POOL
    blobs: SecretStr | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    debug: bool = False
    parent: int | None = None


def read_environment() -> Environment:
    """What is set; raises Mistake for a value that makes no sense."""
    try:
        return Environment()
    except ValidationError as error:
        [first, *_] = error.errors()
        raise Mistake(f"{ENV_PREFIX}{str(first['loc'][0]).upper()}: {first['msg']}") from error


def for_child(*, parent: int, broker: str, blobs: str | None = None) -> dict[str, str]:
    """Variables for a child process. Broker and blob store go this way since their URLs may hold a password,
    which a command line would show to every user of the machine. The options of the broker are in its URL
    already."""
    variables = {"PARENT": str(parent), "BROKER": broker, "BROKER_OPTIONS": ""}
    if blobs is not None:
        variables["BLOBS"] = blobs
    return {f"{ENV_PREFIX}{name}": value for name, value in variables.items()}
