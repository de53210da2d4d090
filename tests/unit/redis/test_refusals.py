"""What passes by itself is not taken for a refusal, however old the server that says so."""

from __future__ import annotations

import pytest
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.redis_streams.link import Link, ServerError

IN_A_SCRIPT = "Error running script (call to f_9c4c): @user_script:211: @user_script: 211: -"  # Redis 6.2


@pytest.fixture
def link() -> Link:
    return Link("redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "raise maxmemory"),
        (ResponseError(f"{IN_A_SCRIPT}OOM command not allowed when used memory"), "raise maxmemory"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "free some space"),
        (ResponseError(f"{IN_A_SCRIPT}MISCONF Errors writing to the AOF file"), "free some space"),
        (ReadOnlyError("You can't write against a read only replica."), "takes no writes"),
        (ResponseError(f"{IN_A_SCRIPT}READONLY You can't write against"), "takes no commands"),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), "takes no commands"),
        (ResponseError(f"{IN_A_SCRIPT}NOREPLICAS Not enough good replicas"), "takes no commands"),
    ],
)
def test_what_passes_is_worth_another_attempt(link: Link, error: ResponseError, said: str) -> None:
    translated = link._translate(error)
    assert isinstance(translated, BrokerUnavailable)
    assert said in str(translated)


@pytest.mark.parametrize("text", ["unknown command 'XADD'", f"{IN_A_SCRIPT}WRONGTYPE Operation against"])
def test_what_does_not_pass_is_a_refusal(link: Link, text: str) -> None:
    assert isinstance(link._translate(ResponseError(text)), ServerError)
