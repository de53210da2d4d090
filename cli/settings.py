"""The environment, read here and nowhere else. Every `HEADRACE_*` variable stands for an option."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.cli.errors import Mistake

ENV_PREFIX = "HEADRACE_"


class Environment(BaseSettings):
    """`broker`, `grpc`: where commands connect when no option says so. `prefix`: of all names on the
    broker. `parent`: set by our own supervisor for its children, the process they must not outlive."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    broker: SecretStr | None = None
    grpc: str | None = None
    prefix: str = "headrace"
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


def for_child(*, parent: int, broker: str) -> dict[str, str]:
    """Variables for a child process. The broker goes this way since its URL may hold a password, which a
    command line would show to every user of the machine."""
    return {f"{ENV_PREFIX}PARENT": str(parent), f"{ENV_PREFIX}BROKER": broker}
