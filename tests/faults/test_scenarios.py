"""Faults under load, on real processes and real brokers; the checker judges each run from outside."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest

from tests.faults.brokers import Kafka, Kind, Valkey
from tests.faults.harness import run_scenario, run_together
from tests.faults.scenarios.scenario import Scenario
from tests.faults.scenarios.table import SCENARIOS, THREE_NODES


def selected(kind: Kind) -> list[list[Scenario]]:
    """Those of one shape together: most of the time of a short scenario goes into starting its processes."""
    groups: dict[Hashable, list[Scenario]] = defaultdict(list)
    for scenario in SCENARIOS:
        if kind in scenario.selected:
            groups[scenario.shape].append(scenario)
    return list(groups.values())


KINDS: tuple[Kind, ...] = ("redis", "kafka")
SELECTED = [(kind, group) for kind in KINDS for group in selected(kind)]


def _names(group: Sequence[Scenario]) -> str:
    return "+".join(scenario.name for scenario in group)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "group"), SELECTED, ids=[f"{kind}-{_names(group)}" for kind, group in SELECTED]
)
def test_nothing_is_lost_and_nothing_shown_twice(
    request: pytest.FixtureRequest, tmp_path: Path, group: Sequence[Scenario], kind: Kind
) -> None:
    server: Valkey | Kafka = request.getfixturevalue(f"{kind}_server")
    reports = asyncio.run(run_together(group, server, tmp_path, seed=secrets.randbits(32)))
    print(*reports, sep="\n")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_of_three_nodes_dies_under_load(kafka_nodes: Kafka, tmp_path: Path) -> None:
    print(asyncio.run(run_scenario(THREE_NODES, kafka_nodes, tmp_path, seed=secrets.randbits(32))))
