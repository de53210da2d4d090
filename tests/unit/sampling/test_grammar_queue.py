"""Grammars are compiled while the engine's steps go on; a request joins when its own is ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from tokenizers import Tokenizer, models

from headrace.gpu_engine import build
from headrace.gpu_engine.api import EngineRequest, Grammar, Output
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.grammar_queue import PATIENCE_S, GrammarQueue
from headrace.gpu_engine.sampling import guide
from headrace.gpu_engine.sampling.compiling import MOST_THREADS, Jobs
from headrace.gpu_engine.sampling.guide import Compiled, GrammarError, GuideMaker
from headrace.gpu_engine.sampling.known import KnownTokens
from tests.unit.engine.fakes import Bench, request
from tests.unit.engine_host.fakes import FakeClock
from tests.unit.sampling.logit_runner import LogitRunner

AB = Grammar(kind="regex", source="ab")
CD = Grammar(kind="regex", source="cd")
WRONG = Grammar(kind="regex", source="(abc", param="guided_regex")


class Gate:
    """A guide maker that compiles when it is told to. `begun`: one count for each grammar that was begun."""

    def __init__(self, guides: GuideMaker) -> None:
        self._guides = guides
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)
        self.compiled: list[str] = []
        self.fails = False

    def knows(self, grammar: Grammar) -> bool:
        return self._guides.knows(grammar)

    def compile(self, grammar: Grammar) -> Compiled:
        self.begun.release()
        assert self.open.wait(120)
        self.compiled.append(grammar.source)
        if self.fails:
            raise RuntimeError("a bug")
        return self._guides.compile(grammar)

    def keep(self, grammar: Grammar, compiled: Compiled) -> None:
        self._guides.keep(grammar, compiled)


class House:
    """An engine of letters behind a queue whose compiler stands still until `gate.open` is set."""

    def __init__(self) -> None:
        engine = Bench(runner=LogitRunner).engine
        assert engine.guides is not None
        self.clock = FakeClock()
        self.gate = Gate(engine.guides)
        self.jobs = Jobs[Compiled](self.clock.read)
        self.queue = GrammarQueue(engine, self.gate, self.jobs, self.clock.read)

    def add(self, name: str, grammar: Grammar | None = None, max_tokens: int = 3) -> None:
        assert self.queue.add(asking(name, grammar, max_tokens)) is None

    def run(self) -> list[Output]:
        """Until all have ended."""
        outputs = []
        while self.queue.has_work:
            outputs += self.queue.step()
        return outputs


def asking(name: str, grammar: Grammar | None = None, max_tokens: int = 3) -> EngineRequest:
    one = request(name, 3, max_tokens=max_tokens, ignore_eos=grammar is None)
    return msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, grammar=grammar))


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.gate.open.set()


def texts(outputs: list[Output]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for output in outputs:
        joined[output.id] = joined.get(output.id, "") + output.text
    return joined


def test_others_go_on_while_a_grammar_is_compiled(house: House) -> None:
    house.add("guided", AB)
    house.add("free", max_tokens=40)
    assert house.gate.begun.acquire(timeout=20)
    during = [output for _ in range(20) for output in house.queue.step()]
    assert [output.id for output in during] == ["free"] * 20
    assert house.queue.num_waiting == 1
    assert house.queue.stats.waiting == 1
    house.gate.open.set()
    assert texts(house.run())["guided"] == "ab"


def test_a_grammar_is_compiled_once_and_then_known(house: House) -> None:
    house.gate.open.set()
    for name in ("a", "b"):
        house.add(name, AB)
    house.add("c", msgspec.structs.replace(AB, param="guided_regex"))
    assert set(texts(house.run()).values()) == {"ab"}
    house.add("d", AB)
    assert house.queue.num_waiting == 1, "in the engine: the queue holds it no longer"
    assert not house.queue._waiting
    assert texts(house.run()) == {"d": "ab"}
    assert house.gate.compiled == ["ab"]


def test_a_wrong_grammar_is_refused_by_the_users_name_for_it_and_then_at_once(house: House) -> None:
    house.gate.open.set()
    house.add("r", WRONG)
    [output] = house.run()
    assert output.error is not None
    assert (output.error.code, output.error.param) == ("invalid_request", "guided_regex")
    assert "guided_regex cannot be used" in output.error.message
    assert "unclosed group" in output.error.message
    again = house.queue.add(asking("s", msgspec.structs.replace(WRONG, param="structured_outputs.regex")))
    assert again is not None
    assert again.param == "structured_outputs.regex"
    assert house.gate.compiled == ["(abc"]


def test_what_would_be_refused_anyway_is_refused_without_compiling(house: House) -> None:
    hopeless = msgspec.structs.replace(asking("r", AB), prompt_ids=[])
    error = house.queue.add(hopeless)
    assert error is not None
    assert error.param == "prompt_ids"
    house.add("r", AB)
    twin = house.queue.add(asking("r", CD))
    assert twin is not None
    assert twin.param == "id"


def test_a_request_that_waits_can_be_aborted(house: House) -> None:
    house.add("r", AB)
    house.queue.abort("r")
    again = house.queue.add(asking("r"))
    assert again is not None
    assert again.param == "id", "it has not been told of its end yet"
    assert [output.finish_reason for output in house.run()] == ["abort"]
    assert not house.queue.has_work


def test_a_grammar_that_takes_too_long_is_refused_and_those_behind_it_are_compiled(house: House) -> None:
    house.add("slow", AB)
    house.add("next", CD)
    assert house.gate.begun.acquire(timeout=20)
    house.clock.now += PATIENCE_S - 1
    assert house.queue.step() == []
    house.clock.now += 1
    [output] = house.queue.step()
    assert output.id == "slow"
    assert output.error is not None
    assert "not compiled within 10 s" in output.error.message
    assert output.error.param == "grammar"
    assert house.gate.begun.acquire(timeout=20), "another thread compiles the next one"
    house.gate.open.set()
    assert texts(house.run()) == {"next": "cd"}


def test_a_parser_that_fails_is_an_error_of_its_requests_alone_and_one_of_the_log(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.gate.fails = True
    house.add("r", AB)
    house.add("s", AB)
    house.add("free")
    house.gate.open.set()
    with caplog.at_level(logging.ERROR, "headrace.gpu_engine.grammar_queue"):
        errors = {output.id: output.error for output in house.run() if output.error is not None}
    assert list(errors) == ["r", "s"]
    assert "the parser failed" in errors["r"].message
    assert len(caplog.records) == 1


def test_jobs_that_are_stuck_take_no_more_than_a_few_threads() -> None:
    release, begun = threading.Event(), threading.Semaphore(0)

    def stand_still() -> int:
        begun.release()
        return release.wait(120)

    jobs = Jobs[int]()
    submitted = [jobs.submit(stand_still) for _ in range(MOST_THREADS + 2)]
    for job in submitted[:MOST_THREADS]:
        assert begun.acquire(timeout=20)
        jobs.give_up(job)
        jobs.give_up(job)  # as each that waits for it does
    assert jobs._threads == MOST_THREADS
    release.set()
    while not all(job.ended for job in submitted):
        jobs.wait(20)


def test_a_served_engine_is_ready_when_its_vocabulary_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first grammar would stop all threads for it, compiled beside them or not."""
    config = EngineConfig(engine="sim")
    prepared = []
    loaded = replace(build.load_engine(config), prepare_grammars=lambda: prepared.append("vocabulary"))
    monkeypatch.setattr(build, "load_engine", lambda _: loaded)
    assert build.build_engine(config) is loaded.engine
    assert prepared == ["vocabulary"]


# --------------------------------------------------------------------------------------- what is kept


def letters() -> GuideMaker:
    guides = Bench(runner=LogitRunner).engine.guides
    assert guides is not None
    return guides


def test_a_tokenizer_that_grammars_cannot_use_is_a_refusal_and_no_end_of_the_engine() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a"))
    guides = GuideMaker(words.to_str(), 3, [2])
    guides.prepare()
    with pytest.raises(GrammarError, match="this model's tokenizer is of a kind that grammars cannot use"):
        guides.make(AB, KnownTokens([], 0))


def test_the_oldest_grammars_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide, "MOST_KEPT", 2)
    guides = letters()
    for grammar in (AB, CD, AB, WRONG):
        guides.keep(grammar, guides.compile(grammar))
    assert [guides.knows(grammar) for grammar in (AB, CD, WRONG)] == [True, False, True]


def test_guides_of_one_grammar_go_their_own_ways() -> None:
    guides, tokens = letters(), [0]
    one, other = guides.make(AB, KnownTokens(tokens, 0)), guides.make(AB, KnownTokens([], 0))
    assert one.matcher.validate_tokens([1]) == 1
    assert other.matcher.validate_tokens([1]) == 0


def test_the_part_that_is_wrong_by_itself_is_the_one_that_is_named() -> None:
    good, bad = '{"type": "object"}', '{"type": "cheese"}'
    source = f"start: a | b\na: %json {good}\nb: %json {bad}"
    grammar = Grammar(
        kind="lark", source=source, param="tools", parts=(("tools[0]", good), ("tools[4]", bad))
    )
    with pytest.raises(GrammarError, match="cheese") as refusal:
        letters().make(grammar, KnownTokens([], 0))
    error = guide.refused_grammar(grammar, refusal.value)
    assert error.param == "tools[4]"
    assert error.message.startswith("tools[4] cannot be used")


def test_a_grammar_that_would_hold_up_a_step_is_refused_where_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guide, "MOST_MASK_S", 0.0)
    compiled = letters().compile(AB)
    assert isinstance(compiled, GrammarError)
    assert "its first token alone takes" in str(compiled)
