"""All faults, as often as you like: `python -m tests.faults.chaos [--seed N] [--kills N] [--only NAME]`.

Prints its seed first. All choices of a scenario follow from the seed (what the machine makes of them does
not: two runs differ in their timing). On each broker every scenario runs once; `--kills` says how many of our
processes die on it at least: what the scenarios leave of that number dies at random instants in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.embedded.kafka import EmbeddedUnusable
from tests.faults.brokers import Kafka, Kind, Valkey, running
from tests.faults.harness import run_scenario
from tests.faults.measures import Figures
from tests.faults.scenarios.deaths import KILLS_A_ROUND
from tests.faults.scenarios.scenario import Scenario
from tests.faults.scenarios.table import EVERYTHING_KILLED, SCENARIOS, THREE_NODES

_KILLS = 100
_ROUNDS = 5  # at most, of one run: what it recorded is judged as a whole
_SERVERS: dict[str, Callable[[Path], Valkey | Kafka]] = {
    "redis": Valkey,
    "kafka": Kafka,
    "kafka with three nodes": lambda folder: Kafka(folder, nodes=3),
}


def chosen(only: Sequence[str], kind: Kind) -> list[Scenario]:
    """The scenarios to run on a broker, in their order."""
    return [
        scenario for scenario in SCENARIOS if kind in scenario.brokers and (not only or scenario.name in only)
    ]


def plans(only: Sequence[str], brokers: Sequence[str]) -> Iterator[tuple[str, list[Scenario]]]:
    for kind in ("redis", "kafka"):
        if kind in brokers and (scenarios := chosen(only, kind)):
            yield kind, scenarios
    if "kafka" in brokers and (not only or THREE_NODES.name in only):
        yield "kafka with three nodes", [THREE_NODES]


@dataclass
class Tally:
    """What happened on one broker. The folders of failed runs are kept."""

    server: Valkey | Kafka
    seed: int
    total: Figures = field(default_factory=Figures)
    failures: int = 0

    def run(self, scenario: Scenario, rounds: int = 1) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"headrace-{scenario.name}-"))
        try:
            report = asyncio.run(run_scenario(scenario, self.server, folder, self.seed, rounds))
        except Exception:  # whatever it is, it belongs to this scenario, and the others go on
            self.failures += 1
            print(f"{scenario.name} on {self.server.kind} FAILED, see {folder}", flush=True)
            traceback.print_exc()
            return
        print(report, flush=True)
        self.total += report.figures
        shutil.rmtree(folder)

    def kill_the_rest(self, kills: int) -> None:
        """With a seed of its own for each run, so that they differ."""
        while self.total.kills < kills and not self.failures:
            left = math.ceil((kills - self.total.kills) / KILLS_A_ROUND)
            self.seed += 1
            self.run(EVERYTHING_KILLED, min(left, _ROUNDS))


def run_all(name: str, scenarios: Sequence[Scenario], seed: int, kills: int) -> int:
    """Returns how many failed."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-chaos-") as data,
        running(_SERVERS[name](Path(data))) as server,
    ):
        tally = Tally(server, seed)
        for scenario in scenarios:
            tally.run(scenario)
        tally.kill_the_rest(kills)
    print(f"ON {name.upper()}, seed {seed}: {tally.total}; {tally.failures} FAILED", flush=True)
    return tally.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kills", type=int, default=_KILLS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--broker", action="append", choices=("redis", "kafka"), default=[])
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    failures = 0
    for name, scenarios in plans(options.only, options.broker or ("redis", "kafka")):
        try:
            kills = options.kills if EVERYTHING_KILLED in scenarios else 0
            failures += run_all(name, scenarios, seed, kills)
        except EmbeddedUnusable as error:
            print(f"NOTHING RAN ON {name.upper()}: {error}", flush=True)
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
