"""The environment, read here and nowhere else. Every `HEADRACE_*` variable stands for an option."""

from __future__ import annotations

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "HEADRACE_"


class Environment(BaseSettings):
    """`broker`, `grpc`: where commands connect when no option says so. `prefix`: of all names on the
    broker. `parent`: set by our own supervisor for its children, the process they must not outlive."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    broker: SecretStr | None = None
    grpc: str | None = None
    prefix: str = "headrace"
    log_level: str = "INFO"
    debug: bool = False
    parent: int | None = None


def for_child(*, parent: int, broker: str) -> dict[str, str]:
    """Variables for a child process. The broker goes this way since its URL may hold a password, which a
    command line would show to every user of the machine."""
    return {f"{ENV_PREFIX}PARENT": str(parent), f"{ENV_PREFIX}BROKER": broker}
