"""How fast the engine is: beside its CPU peers, and against its own bounds; each figure with its target.

    python benchmarks/engine.py                         everything: hours, most of them the slower peers'
    python benchmarks/engine.py --quick                 a smoke run, whose figures mean little
    python benchmarks/engine.py --only peers --model llama-110m --peers openvino llama.cpp
    python benchmarks/engine.py --only soak

Peers run in environments of their own under --cache, built there with uv at the first use, as are the models
that all are given. Everybody loads once; then they run in turn, and who is not running is held.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a script, this file's folder stands first on the path, and modules there would hide others.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse  # noqa: E402 (the path first)
from collections.abc import Sequence  # noqa: E402

from benchmarks.engine_bench import (  # noqa: E402
    accuracy,
    bookkeeping,
    first_token,
    kv_waste,
    offline,
    peers_race,
    soak,
    switches,
)
from benchmarks.engine_bench.contestants import PEER_NAMES  # noqa: E402
from benchmarks.engine_bench.cpu import this_cpu  # noqa: E402
from benchmarks.engine_bench.models import MODELS  # noqa: E402
from benchmarks.engine_bench.settings import EngineBenchSettings  # noqa: E402
from benchmarks.shared.program import Measurement, add_options, run_all  # noqa: E402

MEASUREMENTS: dict[str, Measurement[EngineBenchSettings]] = {
    peers_race.NAME: peers_race.run,
    accuracy.NAME: accuracy.run,
    offline.NAME: offline.run,
    bookkeeping.NAME: bookkeeping.run,
    first_token.NAME: first_token.run,
    kv_waste.NAME: kv_waste.run,
    soak.NAME: soak.run,
    switches.NAME: switches.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all that was measured meets its target."""
    options = _parser().parse_args(arguments)
    facts = {
        "instructions": this_cpu().level,
        "for all": f"{options.threads} threads, {options.slots} slots, {_rounds(options)} rounds",
    }
    return run_all(MEASUREMENTS, options, lambda work: _settings(options, work), facts)


def _settings(options: argparse.Namespace, work: Path) -> EngineBenchSettings:
    return EngineBenchSettings(
        quick=options.quick,
        models=tuple(model for model in MODELS if model.name in options.model),
        peers=tuple(options.peers),
        rounds=_rounds(options),
        threads=options.threads,
        slots=options.slots,
        cache=options.cache.resolve(),
        work=work,
        cpu=this_cpu(),
    )


def _rounds(options: argparse.Namespace) -> int:
    return 1 if options.quick else options.rounds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = [model.name for model in MODELS]
    add_options(parser, MEASUREMENTS)
    parser.add_argument("--model", nargs="*", choices=models, default=models, help="which to race with")
    parser.add_argument("--peers", nargs="*", choices=PEER_NAMES, default=PEER_NAMES, help="against whom")
    parser.add_argument("--rounds", type=_positive, default=3, help="how often everybody runs")
    parser.add_argument("--threads", type=_positive, default=2, help="of everybody")
    parser.add_argument("--slots", type=_positive, default=16, help="requests that run at a time")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError("it must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
