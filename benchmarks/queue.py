"""How fast the queue path is: requests per second, latency, recovery, memory; each figure with its target.

    python benchmarks/queue.py                          everything, on Redis and Kafka: about half an hour
    python benchmarks/queue.py --quick                  a smoke run, whose figures mean little
    python benchmarks/queue.py --only noop --broker redis --fsync always

Servers are embedded ones, fresh for each measurement; peers run in environments of their own under --cache,
built here with uv. Everything runs on this machine, one measurement after the other.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a script, this file's folder stands first on the path, and this file would be the module `queue`.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse  # noqa: E402 (the path first)
from collections.abc import Sequence  # noqa: E402

from benchmarks.queue_bench import kill, latency, memory, noop, preempt, scaling, tax  # noqa: E402
from benchmarks.queue_bench.peer_list import PEERS  # noqa: E402
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind  # noqa: E402
from benchmarks.shared.program import Measurement, add_options, run_all  # noqa: E402

MEASUREMENTS: dict[str, Measurement[BenchSettings]] = {
    noop.NAME: noop.run,
    tax.NAME: tax.run,
    latency.NAME: latency.run,
    kill.NAME: kill.run,
    memory.NAME: memory.run,
    scaling.NAME: scaling.run,
    preempt.NAME: preempt.run,
}
BROKERS: dict[str, tuple[BrokerKind, ...]] = {
    "redis": ("redis",),
    "kafka": ("kafka",),
    "both": ("redis", "kafka"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all that was measured meets its target."""
    options = _parser().parse_args(arguments)
    facts = {"valkey": f"appendfsync {options.fsync}"}
    return run_all(MEASUREMENTS, options, lambda work: _settings(options, work), facts)


def _settings(options: argparse.Namespace, work: Path) -> BenchSettings:
    return BenchSettings(
        quick=options.quick,
        brokers=BROKERS[options.broker],
        fsync=options.fsync,
        cache=options.cache,
        work=work,
        model=options.model,
        peers=tuple(options.peers),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = [peer.name for peer in PEERS]
    add_options(parser, MEASUREMENTS)
    parser.add_argument("--broker", choices=list(BROKERS), default="both")
    parser.add_argument("--fsync", choices=["everysec", "always"], default="everysec")
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, help="which to compare with")
    parser.add_argument("--model", default="smollm2-demo", help="for measurements with a real engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
