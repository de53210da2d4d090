"""Consumers, engines and gateways die at random instants, many times; readers notice nothing but a pause."""

import asyncio
import secrets
from pathlib import Path

import pytest

from tests.faults.brokers import Valkey
from tests.faults.harness import run_scenario
from tests.faults.scenarios.table import EVERYTHING_KILLED

ROUNDS = 3  # of 6 kills each


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dozens_of_kills_lose_nothing_and_show_nothing_twice(redis_server: Valkey, tmp_path: Path) -> None:
    print(asyncio.run(run_scenario(EVERYTHING_KILLED, redis_server, tmp_path, secrets.randbits(32), ROUNDS)))
