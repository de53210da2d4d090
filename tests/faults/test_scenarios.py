"""Faults under load, on real processes and real brokers; the checker judges each run from outside."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from tests.faults.brokers import Kafka, Kind, Valkey
from tests.faults.harness import run_scenario
from tests.faults.scenarios.scenario import Scenario
from tests.faults.scenarios.table import SCENARIOS, THREE_NODES

SELECTED = [(scenario, kind) for scenario in SCENARIOS for kind in scenario.selected]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("scenario", "kind"), SELECTED, ids=[f"{scenario.name}-{kind}" for scenario, kind in SELECTED]
)
def test_nothing_is_lost_and_nothing_shown_twice(
    request: pytest.FixtureRequest, tmp_path: Path, scenario: Scenario, kind: Kind
) -> None:
    server: Valkey | Kafka = request.getfixturevalue(f"{kind}_server")
    print(asyncio.run(run_scenario(scenario, server, tmp_path, seed=secrets.randbits(32))))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_of_three_nodes_dies_under_load(kafka_nodes: Kafka, tmp_path: Path) -> None:
    print(asyncio.run(run_scenario(THREE_NODES, kafka_nodes, tmp_path, seed=secrets.randbits(32))))
