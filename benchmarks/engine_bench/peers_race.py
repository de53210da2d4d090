"""Our engine beside its peers: batches, a single stream, the first token, memory; one race for each model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.contestants import OUR_INT8, OUR_LOSSLESS, OURS, PEERS, Contestant
from benchmarks.engine_bench.cpu import Cpu
from benchmarks.engine_bench.entering import READER, race_between, reader_in
from benchmarks.engine_bench.laps import (
    BATCHED,
    LESS_IS_BETTER,
    MEMORY,
    READ,
    SINGLE,
    TTFT,
    UNITS,
    all_laps,
    reading,
)
from benchmarks.engine_bench.models import Model, model_folder
from benchmarks.engine_bench.ratios import Spread, best_of, column, ratio, spread
from benchmarks.engine_bench.rounds import Race, Turn
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.targets import targets_for
from benchmarks.engine_bench.telling import disturbance, join
from benchmarks.engine_bench.weights import packed_bytes
from benchmarks.shared.report import Row, Target, missing

NAME: Final = "peers"


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    """Interleaved rounds; each ratio is one of figures of the same round."""
    peers = [peer for peer in PEERS if peer.peer in settings.peers]
    for model in settings.models:
        workload = settings.workload(model)
        act = all_laps(workload.single_tokens)
        contestants = [*OURS, *peers]
        with contextlib.ExitStack() as stack:
            race = stack.enter_context(race_between(settings, contestants, model, workload, act))
            stack.enter_context(reader_in(race, settings, reading))
            race.run(settings.rounds)
            yield from tell_race(settings.cpu, model, contestants, race)
            yield from _ceiling(settings, model, race)


def tell_race(cpu: Cpu, model: Model, contestants: Sequence[Contestant], race: Race) -> Iterator[Row]:
    """Who could not run, and why; then, figure by figure, what each brought, and ours against the best."""
    for contestant in contestants:
        if contestant.name in race.fallen:
            yield missing(NAME, f"{model.name}, {contestant.name}", race.fallen[contestant.name])
    for figure in (BATCHED, SINGLE, TTFT, MEMORY):
        for contestant in contestants:
            if contestant.name in race.turns:
                yield _figure_row(model, contestant, race, figure)
        yield from _verdicts(cpu, model, contestants, race, figure)


def _figure_row(model: Model, contestant: Contestant, race: Race, figure: str) -> Row:
    turns = race.turns[contestant.name]
    found = spread(column(turns, figure))
    notes = [found.as_note()]
    if figure == BATCHED:
        notes.append(race.versions[contestant.name])
    if figure != MEMORY and contestant is not OUR_LOSSLESS and OUR_LOSSLESS.name in race.turns:
        against = _ratio(race.turns, OUR_LOSSLESS.name, contestant.name, figure)
        notes.append(f"{OUR_LOSSLESS.name} is {against.middle:.2f} × as fast")
    what = f"{model.name}, {figure}, {contestant.name}"
    return Row(NAME, what, found.middle, UNITS[figure], note=join(*notes, disturbance(turns)))


def _verdicts(
    cpu: Cpu,
    model: Model,
    contestants: Sequence[Contestant],
    race: Race,
    figure: str,
) -> Iterator[Row]:
    targets = targets_for(cpu)
    lossless = {BATCHED: targets.batched, SINGLE: targets.single, TTFT: targets.first_token}
    if figure in lossless:
        yield _verdict(model, contestants, race, figure, OUR_LOSSLESS, lossless[figure])
    if figure == BATCHED:
        yield _verdict(model, contestants, race, figure, OUR_INT8, targets.batched_int8)


def _verdict(
    model: Model,
    contestants: Sequence[Contestant],
    race: Race,
    figure: str,
    ours: Contestant,
    target: Target,
) -> Row:
    """Ours against the best of the peers whose weights have as many bits."""
    what = f"{model.name}, {figure}, {ours.name} ÷ best {ours.weights} peer"
    rivals = {
        each.name: race.turns[each.name]
        for each in contestants
        if each.weights is ours.weights and each.peer != ours.peer and each.name in race.turns
    }
    best = best_of(rivals, figure, less_is_better=figure in LESS_IS_BETTER)
    if best is None or ours.name not in race.turns:
        return missing(NAME, what, "one side of it was not measured")
    found = _ratio(race.turns, ours.name, best, figure)
    both = [*race.turns[ours.name], *race.turns[best]]
    note = join(f"the best is {best}", found.as_note(), disturbance(both))
    return Row(NAME, what, found.middle, "×", target, note)


def _ceiling(settings: EngineBenchSettings, model: Model, race: Race) -> Iterator[Row]:
    """Nobody makes a token without reading all weights once: how near a single stream comes to that."""
    what = f"{model.name}, single stream ÷ what the memory allows"
    for name in (READER, OUR_LOSSLESS.name):
        if name in race.fallen:
            yield missing(NAME, what, f"{name}: {race.fallen[name]}")
            return
    turns, reads = race.turns[OUR_LOSSLESS.name], race.turns[READER]
    num_bytes, _ = apart(packed_bytes, str(model_folder(model, settings.cache)), "int16")
    bandwidth = spread(column(reads, READ))
    yield Row(NAME, f"{model.name}, {READ}", bandwidth.middle / 1e9, UNITS[READ], note=disturbance(reads))
    most = [read / num_bytes for read in column(reads, READ)]
    share = spread([100 * value / bound for value, bound in zip(column(turns, SINGLE), most, strict=True)])
    note = join(f"at most {spread(most).middle:,.0f} tokens/s", f"weights of {num_bytes / 2**20:,.0f} MiB")
    yield Row(NAME, what, share.middle, "%", targets_for(settings.cpu).ceiling, note)


def _ratio(turns: Mapping[str, Sequence[Turn]], ours: str, theirs: str, figure: str) -> Spread:
    return ratio(
        column(turns[ours], figure),
        column(turns[theirs], figure),
        less_is_better=figure in LESS_IS_BETTER,
    )
