"""What each mechanism gains: the engine with it, and with its off switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.contestants import Contestant, ours
from benchmarks.engine_bench.copying import draw_copying
from benchmarks.engine_bench.entering import race_between
from benchmarks.engine_bench.intrusion import longest_gap
from benchmarks.engine_bench.laps import BATCHED, SINGLE, batch_and_single, batch_only
from benchmarks.engine_bench.models import LLAMA, SMOLLM2, Model, model_folder
from benchmarks.engine_bench.ratios import column, ratio
from benchmarks.engine_bench.rounds import Act
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.telling import disturbance, join, told_cores
from benchmarks.engine_bench.workload import Workload
from benchmarks.shared.report import Row, missing

NAME: Final = "switches"
_SHARED_PREFIX: Final = 256

_USUAL: Final = ours("as usual", "--weights", "int16")
_WITHOUT: Final = {
    "weights of 16 bits ÷ float32": ours("float32", "--weights", "float32"),
    "native kernels ÷ torch": ours("torch", "--backend", "torch"),
    "continuous batching ÷ static": ours("static", "--weights", "int16", "--policy", "static"),
    "threads pinned ÷ not": ours("not pinned", "--weights", "int16", "--no-pin"),
}
_CACHED: Final = ours("prefix cache", "--weights", "int16", "--prefix-cache")
_UNCACHED: Final = "prefix cache ÷ without"
_DRAFTING: Final = ours("drafts", "--weights", "int16", "--speculate", "ngram")
_UNDRAFTED: Final = "drafts from n-grams ÷ without"

# KV memory for about half of the slots.
_TIGHT: Final = ("--weights", "int16", "--kv-blocks", "97")
_LOOKING_AHEAD: Final = ours("looking ahead", *_TIGHT)
_GREEDY: Final = ours("not looking ahead", *_TIGHT, "--no-peak-admission")
_SWAPPING: Final = ours("swapping", *_TIGHT, "--no-peak-admission", "--swap-mib", "256")


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    workload = settings.workload(LLAMA)
    yield from _compare(settings, workload, _USUAL, _WITHOUT, "the race's workload")
    shared = settings.workload(LLAMA, shared_prefix=_SHARED_PREFIX)
    note = f"all prompts begin with the same {_SHARED_PREFIX} tokens"
    yield from _compare(settings, shared, _CACHED, {_UNCACHED: _USUAL}, note)
    yield from _tight_memory(settings, workload)
    yield from _speculation(settings)
    yield from _chunking(settings)


def _tight_memory(settings: EngineBenchSettings, workload: Workload) -> Iterator[Row]:
    """Swapping is measured where requests lose their place often."""
    note = "the race's workload, KV memory for half of the slots"
    ahead = {"admission by the expected peak ÷ as soon as a prompt fits": _GREEDY}
    yield from _compare(settings, workload, _LOOKING_AHEAD, ahead, note)
    swap = {"blocks of those who lost their place swapped ÷ computed anew": _GREEDY}
    yield from _compare(settings, workload, _SWAPPING, swap, f"{note}, admission does not look ahead")


def _speculation(settings: EngineBenchSettings) -> Iterator[Row]:
    """Where answers copy their prompts, and where nothing repeats: there it should cost nothing."""
    folder = str(model_folder(SMOLLM2, settings.cache))
    copies, _ = apart(draw_copying, folder, 4 if settings.quick else 32, 16 if settings.quick else 128)
    against = {_UNDRAFTED: _USUAL}
    act = batch_and_single(copies.single_tokens)
    note = f"{SMOLLM2.name} goes on copying prose that it has seen"
    yield from _compare(settings, copies, _DRAFTING, against, note, SMOLLM2, act, (BATCHED, SINGLE))
    yield from _compare(settings, settings.workload(LLAMA), _DRAFTING, against, "the race's workload")


def _compare(
    settings: EngineBenchSettings,
    workload: Workload,
    base: Contestant,
    without: dict[str, Contestant],
    on: str,
    model: Model = LLAMA,
    act: Act = batch_only,
    figures: Sequence[str] = (BATCHED,),
) -> Iterator[Row]:
    """Tokens per second of `base` ÷ those of each without one of its mechanisms."""
    with race_between(settings, [base, *without.values()], model, workload, act) as race:
        race.run(settings.rounds)
    for what, other in without.items():
        lacking = [name for name in (base.name, other.name) if name in race.fallen]
        if lacking:
            yield missing(NAME, what, f"{lacking[0]}: {race.fallen[lacking[0]]}")
            continue
        ours, theirs = race.turns[base.name], race.turns[other.name]
        for figure in figures:
            found = ratio(column(ours, figure), column(theirs, figure))
            note = join(f"{figure} tokens/s, {on}", found.as_note(), disturbance([*ours, *theirs]))
            yield Row(NAME, what, found.middle, "×", note=note)


def _chunking(settings: EngineBenchSettings) -> Iterator[Row]:
    folder = str(model_folder(LLAMA, settings.cache))
    gaps, notes = list[float](), list[str]()
    for chunked in (True, False):
        gap, others = apart(longest_gap, folder, settings.threads, chunked=chunked, quick=settings.quick)
        gaps.append(gap)
        notes.append(f"{'chunked' if chunked else 'whole'} {1000 * gap:.0f} ms ({told_cores(others)})")
    what = "longest wait of running streams for a token when a long prompt comes, whole ÷ chunked"
    yield Row(NAME, what, gaps[1] / gaps[0], "×", note=_sum_up(notes))


def _sum_up(notes: Sequence[str]) -> str:
    return join("a prompt of 1,500 tokens, steps of 128", *notes)
