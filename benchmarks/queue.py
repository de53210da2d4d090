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
import shutil  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402

from rich.console import Console  # noqa: E402

from benchmarks.queue_bench import kill, latency, memory, noop, preempt, scaling, tax  # noqa: E402
from benchmarks.queue_bench.peer_list import PEERS  # noqa: E402
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind  # noqa: E402
from benchmarks.shared.machine import describe  # noqa: E402
from benchmarks.shared.report import CannotRun, Row, Verdict, as_json, missing, show  # noqa: E402

MEASUREMENTS: dict[str, Callable[[BenchSettings], Iterator[Row]]] = {
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that children are ended, too
    console, header = Console(width=None if sys.stdout.isatty() else 200), describe()
    rows: list[Row] = []
    work = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    settings = _settings(options, work)
    header["valkey"] = f"appendfsync {settings.fsync}"
    try:
        for name in options.only or MEASUREMENTS:
            began = time.monotonic()
            console.print(f"measuring {name} …", highlight=False)
            for row in _guarded(name, settings):
                rows.append(row)
                told = f"  {row.what}: {row.value} {row.unit} {row.note}"
                console.print(told, highlight=False, markup=False)
            console.print(f"  took {time.monotonic() - began:.0f} s", highlight=False)
        show(rows, header, console)
        if options.json is not None:
            options.json.write_text(as_json(rows, header) + "\n")
    finally:
        if options.keep:
            console.print(f"logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    return int(any(row.verdict is Verdict.MISSED for row in rows))


def _guarded(name: str, settings: BenchSettings) -> Iterator[Row]:
    """A measurement that breaks off is a row that says so; the others go on."""
    try:
        yield from MEASUREMENTS[name](settings)
    except (CannotRun, AssertionError, OSError, RuntimeError, ValueError) as error:
        yield missing(name, "the rest of it", f"broke off: {type(error).__name__}: {error}")


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
    cache = Path.home() / ".cache" / "headrace" / "benchmarks"
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="repeat it for several")
    parser.add_argument("--broker", choices=list(BROKERS), default="both")
    parser.add_argument("--fsync", choices=["everysec", "always"], default="everysec")
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, help="which to compare with")
    parser.add_argument("--model", default="smollm2-demo", help="for measurements with a real engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--cache", type=Path, default=cache, help="for the peers' environments")
    parser.add_argument("--keep", action="store_true", help="keep data and logs of the run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
