"""The outbox: whatever happens to appends, the log ends up with each token once and in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.broker.events import Delta, Event, Started, TokenLogprobs
from headrace.broker.fold import Answer, Deaths, Fold, fold
from headrace.consumer.outbox import Checkpoints, Outbox
from headrace.consumer.written import Written

RULES = Checkpoints(tokens=4, seconds=1.0, first_s=0.02)
AT_ONCE = float("-inf")


def started(epoch: int, kept: int = 0) -> Started:
    return Started(epoch, "c", "q/1", seed=1, body_hash=b"h", fingerprint="f", kept=kept)


def begun(state: Fold | None = None, epoch: int = 1, kept: int = 0) -> Outbox:
    outbox = Outbox(epoch, state or Fold())
    outbox.begin(started(epoch, kept), 0.0)
    return outbox


def running() -> Outbox:
    """An outbox whose first delta was written."""
    outbox = begun()
    outbox.add([1], "a", 0.0)
    outbox.take()
    outbox.acknowledged()
    return outbox


# ---------------------------------------------------------------------------------- what is due, and when


def test_started_goes_at_once_where_somebody_streams() -> None:
    assert begun().due_at(RULES, urgent=True) == AT_ONCE


def test_started_goes_at_once_where_somebody_may_have_died_of_the_request() -> None:
    outbox = begun(epoch=2)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE
    outbox.take()
    outbox.acknowledged()
    outbox.add([1], "a", 5.0)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE


def test_started_waits_a_moment_for_the_first_tokens_where_nobody_streams() -> None:
    outbox = begun()
    assert outbox.due_at(RULES, urgent=False) == 0.02
    outbox.add([7], "x", 0.01)
    assert outbox.due_at(RULES, urgent=False) == 0.02
    assert [type(event) for event in outbox.take()] == [Started, Delta]


def test_the_first_delta_goes_soon_even_when_nobody_streams() -> None:
    outbox = begun()
    outbox.take()
    outbox.acknowledged()
    assert outbox.due_at(RULES, urgent=False) is None
    outbox.add([1], "a", 5.0)
    assert outbox.due_at(RULES, urgent=False) == 5.02


def test_what_somebody_streams_waits_only_while_an_append_is_unacknowledged() -> None:
    outbox = running()
    outbox.add([2], "b", 1.0)
    assert outbox.due_at(RULES, urgent=True) == AT_ONCE
    outbox.take()
    outbox.add([3], "c", 1.1)
    outbox.add([4], "d", 1.2)
    assert outbox.due_at(RULES, urgent=True) is None
    outbox.acknowledged()
    assert outbox.due_at(RULES, urgent=True) == AT_ONCE
    assert outbox.take() == (Delta(1, 2, (3, 4), "cd"),)


def test_what_nobody_streams_waits_for_a_checkpoint_by_time() -> None:
    outbox = running()
    outbox.add([2], "b", 10.0)
    outbox.add([3], "c", 10.5)
    assert outbox.due_at(RULES, urgent=False) == 11.0


def test_what_nobody_streams_waits_for_a_checkpoint_by_tokens() -> None:
    outbox = running()
    outbox.add([2, 3, 4], "bcd", 10.0)
    assert outbox.due_at(RULES, urgent=False) == 11.0
    outbox.add([5], "e", 10.1)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE


def test_text_without_tokens_and_tokens_without_text_are_both_written() -> None:
    outbox = running()
    outbox.add([2], "", 0.0)
    outbox.take()
    outbox.acknowledged()
    outbox.add([], "held back", 0.0)
    assert outbox.take() == (Delta(1, 2, (), "held back"),)


def test_nothing_is_due_when_nothing_came() -> None:
    outbox = running()
    outbox.add([], "", 0.0)
    assert outbox.due_at(RULES, urgent=True) is None
    assert outbox.empty


# ------------------------------------------------------------------------------------------- unknown fate


def test_an_append_that_landed_is_not_written_again() -> None:
    outbox = running()
    outbox.add([2], "b", 0.0)
    log: list[Event] = [started(1), Delta(1, 0, (1,), "a"), *outbox.take()]
    assert outbox.reopened(2, fold(log), now_ms=9)
    outbox.add([3], "c", 0.0)
    again, delta = outbox.take()
    assert isinstance(again, Started)
    assert (again.epoch, again.kept, again.at_ms) == (2, 2, 9)
    assert delta == Delta(2, 2, (3,), "c")


def test_an_append_that_did_not_land_is_written_under_the_new_epoch() -> None:
    outbox = running()
    outbox.add([2], "b", 0.0)
    outbox.take()
    assert outbox.reopened(2, fold([started(1), Delta(1, 0, (1,), "a")]), now_ms=0)
    assert outbox.take()[1] == Delta(2, 1, (2,), "b")


def test_a_fresh_start_that_did_not_land_still_drops_the_old_answer() -> None:
    old = fold([started(1), Delta(1, 0, (1, 2), "old")])
    outbox = begun(old, epoch=2, kept=0)
    outbox.take()
    assert outbox.reopened(3, old, now_ms=0)
    (again,) = outbox.take()
    assert isinstance(again, Started)
    assert again.kept == 0


def test_a_log_that_somebody_else_wrote_into_is_not_continued() -> None:
    outbox = running()
    theirs: list[Event] = [started(1), Delta(1, 0, (1,), "a"), started(2, kept=1), Delta(2, 1, (9,), "z")]
    assert not outbox.reopened(3, fold(theirs), now_ms=0)


def test_a_log_that_somebody_else_began_anew_is_not_continued() -> None:
    outbox = running()
    theirs: list[Event] = [started(1), Delta(1, 0, (1,), "a"), started(2, kept=0)]
    assert not outbox.reopened(3, fold(theirs), now_ms=0)


# ------------------------------------------------------------------------------------------------- marks


def marked(state: Fold, epoch: int = 2, deaths: int = 0) -> Outbox:
    """By an owner that has not read the body yet."""
    outbox = Outbox(epoch, state)
    held = started(epoch, len(state.token_ids))
    outbox.mark(structs.replace(held, seed=0, fingerprint="", deaths=deaths), 0.0)
    return outbox


def test_a_mark_goes_at_once_and_what_was_read_behind_it() -> None:
    outbox = marked(Fold(), epoch=1)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE
    [mark] = outbox.take()
    assert (mark, outbox.stated) == (structs.replace(started(1), seed=0, fingerprint=""), None)
    outbox.acknowledged()
    assert outbox.stated == mark
    outbox.begin(started(1), 0.0)
    assert outbox.take() == (started(1),)


def test_an_answer_that_begins_anew_behind_a_mark_does_so_whatever_becomes_of_the_append() -> None:
    old: list[Event] = [started(1), Delta(1, 0, (1, 2), "old")]
    for lands in (True, False):
        outbox = marked(fold(old))
        log = [*old, *outbox.take()]
        outbox.acknowledged()
        outbox.begin(structs.replace(started(2, kept=0), fingerprint="other"), 0.0)
        anew = outbox.take()
        log += anew if lands else ()
        assert outbox.reopened(3, fold(log), now_ms=0)
        log += outbox.take()
        assert fold(log).token_ids == []


def test_a_mark_of_unknown_fate_is_made_again_under_the_new_epoch() -> None:
    old: list[Event] = [started(1), Delta(1, 0, (1,), "a")]
    for lands in (True, False):
        outbox = marked(fold(old), deaths=1)
        events = outbox.take()
        assert outbox.reopened(3, fold([*old, *events] if lands else old), now_ms=0)
        [again] = outbox.take()
        assert isinstance(again, Started)
        assert (again.epoch, again.kept, again.deaths, again.fingerprint) == (3, 1, 1, "")


# ------------------------------------------------------------------------------------------------ deaths


def test_a_death_is_stated_behind_the_tokens_and_keeps_them_all() -> None:
    outbox = running()
    outbox.add([2], "b", 0.0)
    outbox.restate(deaths=1, lone_deaths=1, alone=True)
    delta, again = outbox.take()
    assert delta == Delta(1, 1, (2,), "b")
    assert again == structs.replace(started(1, kept=2), deaths=1, lone_deaths=1, alone=True)
    outbox.acknowledged()
    assert outbox.stated == again
    assert fold([started(1), Delta(1, 0, (1,), "a"), delta, again]).deaths == Deaths(2, 2)


def test_a_death_before_anything_was_written_is_stated_once() -> None:
    outbox = begun()
    outbox.restate(deaths=1, lone_deaths=0, alone=True)
    assert outbox.take() == (structs.replace(started(1), deaths=1, alone=True),)


def test_the_first_token_after_a_death_goes_at_once_and_clears_the_request() -> None:
    outbox = running()
    outbox.restate(deaths=1, lone_deaths=0, alone=False)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE
    outbox.take()
    outbox.acknowledged()
    outbox.add([2], "b", 5.0)
    outbox.cleared()
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE
    assert outbox.take() == (Delta(1, 1, (2,), "b"),)
    outbox.acknowledged()
    outbox.add([3], "c", 6.0)
    assert outbox.due_at(RULES, urgent=False) == 7.0


def test_tokens_of_the_dead_engine_do_not_count_as_the_first_ones_of_the_next() -> None:
    outbox = running()
    outbox.add([2], "b", 5.0)
    outbox.restate(deaths=1, lone_deaths=0, alone=False)
    assert [type(event) for event in outbox.take()] == [Delta, Started]
    outbox.acknowledged()
    outbox.add([3], "c", 6.0)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE


def test_a_statement_of_unknown_fate_is_told_by_what_it_states() -> None:
    log: list[Event] = [started(1), Delta(1, 0, (1,), "a")]
    for lands in (True, False):
        outbox = running()
        outbox.restate(deaths=1, lone_deaths=0, alone=False)
        events = outbox.take()
        state = fold([*log, *events] if lands else log)
        assert outbox.reopened(2, state, now_ms=0)
        assert (outbox.stated is not None and outbox.stated.deaths == 1) is lands
        assert outbox.take() == (structs.replace(started(2, kept=1), deaths=1),)


@dataclass
class Broker:
    """A log that may take an append and not say so."""

    log: list[Event] = field(default_factory=list)
    epoch: int = 1


@settings(deadline=None, max_examples=300)
@given(
    moves=st.lists(
        st.sampled_from(["add", "silent", "death", "ok", "lost", "landed", "crash", "crash of a reader"]),
        max_size=40,
    ),
)
def test_whatever_happens_to_appends_readers_see_each_token_once_and_no_death_is_forgotten(
    moves: list[str],
) -> None:
    broker = Broker()
    expected: list[int] = []
    outbox = begun()
    deaths, barren = 0, True  # barren: no token since the begin, or since the last death
    for number, move in enumerate([*moves, "ok", "ok"]):
        if move == "add":
            outbox.add([number], f"<{number}>", 0.0, [TokenLogprobs(number, -1.0)])
        elif move == "silent":
            outbox.add([number], "", 0.0, [TokenLogprobs(number, -1.0)])
        elif move == "death":
            deaths, barren = deaths + barren, True
            outbox.restate(deaths=deaths, lone_deaths=0, alone=False)
        elif move == "crash":  # another owner resumes; what was not in the log is generated again
            broker.epoch += 1
            state = fold(broker.log)
            outbox = begun(state, broker.epoch, len(state.token_ids))
            outbox.restate(deaths=state.deaths.all, lone_deaths=0, alone=False)
            expected, deaths, barren = state.token_ids.copy(), state.deaths.all, True
        elif move == "crash of a reader":  # another owner resumes, and dies of the body once it left its mark
            before = fold(broker.log)
            outbox = marked(before, broker.epoch + 1, before.deaths.all)
            broker.log.extend(outbox.take())
            broker.epoch += 2
            state = fold(broker.log)
            assert state.deaths.all == before.deaths.all + 1
            assert (state.token_ids, state.restarts) == (before.token_ids, 0)
            outbox = marked(state, broker.epoch, state.deaths.all)
            broker.log.extend(outbox.take())
            outbox.acknowledged()
            outbox.begin(started(broker.epoch, len(state.token_ids)), 0.0)
            outbox.restate(deaths=state.deaths.all, lone_deaths=0, alone=False)
            expected, deaths, barren = state.token_ids.copy(), state.deaths.all, True
        elif not outbox.empty:
            events = outbox.take()
            if move != "lost":
                broker.log.extend(events)
            if move == "ok":
                outbox.acknowledged()
            else:
                broker.epoch += 1
                assert outbox.reopened(broker.epoch, fold(broker.log), now_ms=0)
        if move in ("add", "silent"):
            expected.append(number)
            deaths, barren = 0, False
            outbox.cleared()
    seen = fold(broker.log)
    assert outbox.empty
    assert seen.restarts == 0
    assert seen.token_ids == expected
    assert outbox.written.has_same_tokens(Written.of(seen))
    assert [each.token for each in seen.logprobs] == expected
    shown = [int(number) for number in seen.text.replace("<", "").split(">")[:-1]]
    assert shown == [token for token in seen.token_ids if token in set(shown)]
    assert shown == sorted(set(shown))
    assert seen.next_seq == outbox.next_seq
    assert outbox.written.characters(0) == len(seen.text)
    assert seen.deaths.all == deaths + 1 if barren else seen.deaths.all <= 1


# --------------------------------------------------------------------------------------- several answers


def test_each_answer_has_a_delta_of_its_own_and_all_of_them_count_for_a_checkpoint() -> None:
    outbox = running()
    outbox.add([2], "b", 0.0)
    outbox.add([7], "x", 0.0, choice=2)
    outbox.add([3], "c", 0.0)
    assert outbox.due_at(RULES, urgent=False) == 1.0
    outbox.add([8], "y", 0.5, choice=2)
    assert outbox.due_at(RULES, urgent=False) == AT_ONCE
    assert outbox.take() == (Delta(1, 1, (2, 3), "bc"), Delta(1, 2, (7, 8), "xy", 2))
    outbox.acknowledged()
    assert outbox.written.characters(2) == 2
    assert outbox.written.num_tokens == 5
    outbox.add([9], "z", 1.0, choice=2)
    outbox.restate(deaths=1, lone_deaths=0, alone=False)
    assert outbox.take()[-1] == structs.replace(started(1, kept=6), deaths=1)


@settings(deadline=None, max_examples=200)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "ok", "lost", "landed", "front", "resume", "restart"]),
            st.integers(0, 2),
        ),
        max_size=40,
    ),
)
def test_whatever_happens_to_appends_each_answer_has_its_own_tokens_once(
    moves: list[tuple[str, int]],
) -> None:
    """`front`: of an append, Kafka stored only the first events."""
    broker, outbox = Broker(), begun()
    expected: dict[int, list[int]] = {}
    for number, (move, choice) in enumerate([*moves, ("ok", 0), ("ok", 0)]):
        if move == "add":
            outbox.add([number], f"{number};", 0.0, choice=choice)
            expected.setdefault(choice, []).append(number)
        elif move in ("resume", "restart"):
            broker.epoch += 1
            state = fold(broker.log)
            outbox = begun(state, broker.epoch, state.num_tokens if move == "resume" else 0)
            answers = state.answers if move == "resume" else {}
            expected = {place: list(answer.token_ids) for place, answer in answers.items()}
        elif not outbox.empty:
            events = outbox.take()
            broker.log.extend({"lost": (), "front": events[: choice + 1]}.get(move, events))
            if move == "ok":
                outbox.acknowledged()
            else:
                broker.epoch += 1
                assert outbox.reopened(broker.epoch, fold(broker.log), now_ms=0)
    seen = fold(broker.log)
    assert outbox.empty
    assert outbox.written.has_same_tokens(Written.of(seen))
    for place in range(3):
        answer = seen.answers.get(place, Answer())
        assert answer.token_ids == expected.get(place, [])
        assert answer.text == "".join(f"{token};" for token in answer.token_ids)
        assert outbox.written.characters(place) == len(answer.text)
    assert seen.next_seq == outbox.next_seq
