"""The fold: whoever reads a log, from wherever, shows one and the same unbroken text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Handed,
    Moved,
    Started,
    TokenLogprobs,
)
from headrace.broker.fold import Deaths, Fold, fold
from tests.unit.broker.fold_mutants import FOLD_MUTANTS
from tests.unit.broker.kafka_model import MUTANTS, Model
from tests.unit.broker.one_request import Step, World, check

STEPS: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(("act", "act", "act", "act", "act", "act", "repeat", "take over", "take over anew")),
    st.integers(0, 7),
)
SCHEDULES = st.lists(STEPS, max_size=60)
WAKERS = st.lists(st.integers(0, 7), max_size=40)
# Enough to find each mutant; the same every time, so that a mutant is found every time.
SEARCH = settings(
    deadline=None,
    max_examples=600,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
MODEL_SCHEDULES = 600


def started(epoch: int, kept: int = 0) -> Started:
    return Started(epoch, "c", "d", 1, b"", "m", kept)


def delta(epoch: int, seq: int, text: str) -> Delta:
    return Delta(epoch, seq, tuple(text.encode()), text)


# ------------------------------------------------------------------------------------- the rules, one by one


def test_an_empty_log_shows_nothing() -> None:
    state = fold([])
    assert (state.text, state.epoch, state.next_seq, state.ended) == ("", 0, 0, False)


def test_deltas_make_the_text_in_their_order() -> None:
    state = fold([started(1), delta(1, 0, "a"), delta(1, 1, "bc"), Finished(1, "stop")])
    assert (state.text, state.token_ids, state.next_seq) == ("abc", list(b"abc"), 2)
    assert state.terminal == Finished(1, "stop")


def test_a_duplicate_append_is_void() -> None:
    state = Fold()
    assert [state.read(e) for e in (delta(1, 0, "a"), delta(1, 0, "a"), delta(1, 1, "b"))] == [
        True,
        False,
        True,
    ]
    assert state.text == "ab"


def test_a_gap_is_void_until_the_missing_one_comes() -> None:
    assert fold([delta(1, 1, "b"), delta(1, 0, "a"), delta(1, 1, "b")]).text == "ab"


@pytest.mark.parametrize("raising", [Fence(2), started(2, kept=1)])
def test_a_higher_epoch_voids_all_that_a_lower_one_writes_later(raising: Event) -> None:
    state = fold([started(1), delta(1, 0, "a"), raising])
    late: list[Event] = [
        delta(1, 1, "X"),
        started(1),
        Fence(1),
        Finished(1, "stop"),
        Failed(1, "x", ""),
        Moved(1, "p", "l"),
    ]
    assert not any(state.read(event) for event in late)
    assert (state.text, state.epoch, state.ended) == ("a", 2, False)
    assert state.read(delta(2, 1, "b"))
    assert state.text == "ab"


def test_started_of_the_same_epoch_counts() -> None:
    state = fold([Fence(2), started(2), delta(2, 0, "a")])
    assert state.started == started(2)
    assert state.text == "a"


def test_a_resume_keeps_the_text_and_a_restart_drops_it_but_never_the_numbers() -> None:
    before: list[Event] = [started(1), delta(1, 0, "ab"), delta(1, 1, "c")]
    resumed = fold([*before, started(2, kept=3)])
    assert (resumed.text, resumed.next_seq, resumed.restarts) == ("abc", 2, 0)
    restarted = fold([*before, started(2, kept=0)])
    assert (restarted.text, restarted.token_ids, restarted.next_seq, restarted.restarts) == ("", [], 2, 1)
    assert restarted.read(delta(2, 2, "x"))
    assert restarted.text == "x"


def test_log_probabilities_stay_with_their_tokens() -> None:
    scores = [TokenLogprobs(token, -0.5, ((token, -0.5),)) for token in range(3)]
    before: list[Event] = [
        started(1),
        Delta(1, 0, (0, 1), "ab", logprobs=tuple(scores[:2])),
        Delta(1, 0, (0, 1), "ab", logprobs=tuple(scores[:2])),
        Delta(1, 1, (2,), "c", logprobs=(scores[2],)),
    ]
    assert fold([*before, started(2, kept=3)]).logprobs == scores
    assert fold([*before, started(2, kept=0)]).logprobs == []


def test_several_answers_grow_side_by_side_and_are_kept_or_dropped_together() -> None:
    before: list[Event] = [
        started(1),
        Delta(1, 0, (97,), "a", prompt_logprobs=(TokenLogprobs(5, -1.0),)),
        Delta(1, 1, (98,), "b", choice=2, logprobs=(TokenLogprobs(98, -0.5),)),
        Delta(1, 2, (99,), "c"),
        Delta(1, 2, (99,), "c", choice=2),
        Delta(1, 3, (100,), "d", choice=2),
    ]
    state = fold([*before, started(2, kept=4)])
    assert {number: answer.text for number, answer in state.answers.items()} == {0: "ac", 2: "bd"}
    assert (state.text, state.others[2].token_ids, state.num_tokens) == ("ac", [98, 100], 4)
    assert state.others[2].logprobs == [TokenLogprobs(98, -0.5)]
    assert state.prompt_logprobs == [TokenLogprobs(5, -1.0)]
    assert state.deaths == Deaths(1, 0), "its tokens were made before it began"
    anew = fold([*before, started(2, kept=0)])
    assert (anew.others, anew.text, anew.prompt_logprobs, anew.restarts) == ({}, "", [], 1)


@pytest.mark.parametrize("end", [Finished(1, "stop"), Failed(1, "expired", "")])
def test_the_first_end_is_final_even_for_higher_epochs(end: Event) -> None:
    state = fold([started(1), delta(1, 0, "a"), end])
    assert state.ended
    for event in (delta(1, 1, "b"), started(2), Fence(2), Finished(2, "length"), Moved(2, "p", "l")):
        assert not state.read(event)
    assert (state.text, state.epoch, state.terminal) == ("a", 1, end)


def test_a_log_that_moved_goes_on_elsewhere_where_epochs_begin_anew() -> None:
    state = fold([Fence(7), Moved(7, "pool", "log"), Fence(1), started(1), delta(1, 0, "a")])
    assert (state.moved, state.epoch, state.text) == (Moved(7, "pool", "log"), 1, "a")


def test_a_log_that_stays_where_it_is_keeps_its_epoch_when_the_request_moves() -> None:
    state = fold([started(7), Moved(7, "pool", "")])
    assert not state.read(started(6))
    assert state.epoch == 7


# ------------------------------------------------------------------------------------------------- deaths


def test_a_request_that_nobody_began_has_no_deaths() -> None:
    assert fold([Fence(1)]).deaths == Deaths()


def test_an_owner_that_wrote_no_end_has_died_with_the_request() -> None:
    assert fold([started(1)]).deaths == Deaths(1, 0)
    again = Started(2, "c", "d", 1, b"", "m", deaths=1)
    assert fold([started(1), again]).deaths == Deaths(2, 0)


def test_only_a_death_alone_is_counted_as_such() -> None:
    alone = Started(3, "c", "d", 1, b"", "m", deaths=2, alone=True)
    assert fold([alone]).deaths == Deaths(3, 1)
    assert fold([Started(4, "c", "d", 1, b"", "m", deaths=3, lone_deaths=1)]).deaths == Deaths(4, 1)


def test_an_owner_that_gives_up_before_it_began_hides_no_death() -> None:
    assert fold([started(1), Fence(2), Handed(2, "drain")]).deaths == Deaths(1, 0)


def test_an_owner_that_has_not_read_the_body_counts_as_dead_and_changes_nothing_of_the_answer() -> None:
    begun = Started(1, "c", "d", 7, b"h", "words", at_ms=1)
    mark = Started(2, "other", "d", 0, b"h", "", kept=1, deaths=0, alone=True)
    state = fold([begun, Delta(1, 0, (5,), "a"), mark])
    assert (state.text, state.deaths) == ("a", Deaths(1, 1))
    assert state.started is not None
    assert (state.started.consumer, state.started.seed, state.started.fingerprint) == ("other", 7, "words")
    unread = fold([mark]).started
    assert unread is not None
    assert unread.fingerprint == ""


def test_a_token_clears_the_request_of_its_deaths() -> None:
    assert fold([Started(3, "c", "d", 1, b"", "m", deaths=2), delta(3, 0, "a")]).deaths == Deaths()
    kept = Started(4, "c", "d", 1, b"", "m", kept=1, deaths=0)
    assert fold([started(1), delta(1, 0, "a"), kept]).deaths == Deaths(1, 0)


def test_an_owner_that_handed_the_request_back_has_not_died() -> None:
    state = fold([Started(2, "c", "d", 1, b"", "m", deaths=1), Handed(2, "drain")])
    assert state.deaths == Deaths(1, 0)
    state.read(Started(3, "c", "d", 1, b"", "m", deaths=1))
    assert state.deaths == Deaths(2, 0)


# -------------------------------------------------------------------------------------------- interleavings


def run_one_request(schedule: Sequence[Step], rest: Sequence[int], fold_type: type[Fold]) -> None:
    world = World(fold_type)
    world.run(schedule, rest)
    check(world)


@settings(deadline=None, max_examples=400)
@given(schedule=SCHEDULES, rest=WAKERS)
@pytest.mark.slow
def test_whatever_owners_do_all_readers_and_successors_agree_on_one_text(
    schedule: list[Step], rest: list[int]
) -> None:
    run_one_request(schedule, rest, Fold)


@settings(deadline=None, max_examples=200)
@given(schedule=SCHEDULES, rest=WAKERS)
def test_a_reader_that_re_attaches_anywhere_shows_the_same_as_one_who_never_left(
    schedule: list[Step], rest: list[int]
) -> None:
    """It kept its fold, or it folds the entries up to its cursor again; both go on alike."""
    world = World()
    world.run(schedule, rest)
    whole, kept = fold(world.log), Fold()
    for cursor, event in enumerate(world.log):
        again = fold(world.log[:cursor])
        assert again == kept
        for later in world.log[cursor:]:
            again.read(later)
        assert again == whole
        kept.read(event)


@settings(deadline=None, max_examples=200)
@given(schedule=SCHEDULES, rest=WAKERS, data=st.data())
def test_void_events_change_nothing_so_a_log_without_them_reads_the_same(
    schedule: list[Step], rest: list[int], data: st.DataObject
) -> None:
    world, state = World(), Fold()
    world.run(schedule, rest)
    kept = [e for e in world.log if state.read(e) or data.draw(st.booleans())]
    assert fold(kept) == state


@pytest.mark.slow
@pytest.mark.parametrize("mutant", FOLD_MUTANTS)
def test_a_fold_with_a_broken_rule_is_caught_by_the_same_property(mutant: str) -> None:
    @SEARCH
    @given(schedule=SCHEDULES, rest=WAKERS)
    def property_of_the_mutant(schedule: list[Step], rest: list[int]) -> None:
        run_one_request(schedule, rest, FOLD_MUTANTS[mutant])

    with pytest.raises(AssertionError):
        property_of_the_mutant()


def test_who_puts_a_request_off_before_it_began_is_known_until_it_begins() -> None:
    log: list[Event] = [started(1), Handed(2, "retry 3: the store is away")]
    state = fold(log)
    assert state.put_off == log[-1]
    assert state.handed is None
    assert fold([*log, started(3)]).put_off is None


# ---------------------------------------------------------------------------------- the protocol around it


def run_model(seeds: range, mutant: str = "", fold_type: type[Fold] = Fold) -> None:
    for seed in seeds:
        model = Model(random.Random(seed), mutant, fold_type)
        model.run()
        try:
            model.check()
        except AssertionError as error:
            error.add_note(f"schedule of seed {seed}")
            raise


@pytest.mark.slow
def test_in_any_schedule_of_the_protocol_each_request_has_one_end_one_line_and_one_text() -> None:
    run_model(range(MODEL_SCHEDULES))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protocol_with_a_broken_rule_is_caught(mutant: str) -> None:
    with pytest.raises(AssertionError):
        run_model(range(10 * MODEL_SCHEDULES), mutant)


@pytest.mark.parametrize("mutant", ["BelievesAnyEpoch", "LateStartedWins", "LateTerminalCounts"])
def test_a_fold_that_believes_late_owners_is_caught_by_the_protocols_schedules_too(mutant: str) -> None:
    with pytest.raises(AssertionError):
        run_model(range(10 * MODEL_SCHEDULES), fold_type=FOLD_MUTANTS[mutant])
