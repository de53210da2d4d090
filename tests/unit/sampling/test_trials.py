"""Grammars that llguidance itself does not bound end a process of their own, and not the engine's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.sampling.guide import GrammarError, GuideMaker
from headrace.gpu_engine.sampling.trials import TrialProcess, TriedGrammars
from tests.unit.engine.fakes import Bench
from tests.unit.sampling.logit_runner import LogitRunner

AB = Grammar(kind="regex", source="ab")
WRONG = Grammar(kind="regex", source="(abc")


def many_patterns_at_once() -> Grammar:
    """Compiling it alone takes hours, and more memory all the time."""
    patterns = [{"pattern": f"(x.{{{length}}})+$"} for length in range(5, 29)]
    schema = {"type": "object", "properties": {"a": {"type": "string", "allOf": patterns}}, "required": ["a"]}
    return Grammar(kind="json_schema", source=json.dumps(schema))


@pytest.fixture
def guides() -> GuideMaker:
    made = Bench(runner=LogitRunner).engine.guides
    assert made is not None
    return made


@pytest.fixture
def trial(guides: GuideMaker) -> Iterator[TrialProcess]:
    trial = TrialProcess(guides.vocabulary)
    yield trial
    trial.close()


def test_a_grammar_that_nothing_bounds_is_refused_and_the_next_one_is_tried_anew(
    guides: GuideMaker, trial: TrialProcess
) -> None:
    tried = TriedGrammars(guides, trial)
    refused = tried.compile(many_patterns_at_once())
    assert isinstance(refused, GrammarError)
    assert "more than 5 s of processor time" in str(refused)
    assert not isinstance(tried.compile(AB), GrammarError)


def test_a_grammar_that_is_wrong_is_refused_in_the_parsers_words(
    guides: GuideMaker, trial: TrialProcess
) -> None:
    refused = TriedGrammars(guides, trial).compile(WRONG)
    assert isinstance(refused, GrammarError)
    assert "unclosed group" in str(refused)


def test_a_process_that_somebody_killed_is_no_grammars_fault(trial: TrialProcess) -> None:
    assert trial.survives(AB)
    assert trial._process is not None
    trial._process.kill()
    trial._process.wait()
    assert trial.survives(AB)


def test_it_ends_with_its_engine(trial: TrialProcess) -> None:
    assert trial.survives(AB)
    process = trial._process
    assert process is not None
    trial.close()
    assert process.returncode is not None


def test_where_no_process_can_try_grammars_they_are_compiled_as_they_come(
    guides: GuideMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.gpu_engine.sampling.trials.MODULE", "headrace.no_such_module")
    trial = TrialProcess(guides.vocabulary)
    assert not isinstance(TriedGrammars(guides, trial).compile(AB), GrammarError)
    assert "grammars cannot be tried" in caplog.text


def test_on_a_busy_machine_the_clock_ends_it_too(
    guides: GuideMaker, trial: TrialProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind it must not wait until it had its share of the processor."""
    assert trial.survives(AB)
    monkeypatch.setattr("headrace.gpu_engine.sampling.trials.LONGEST_S", 0.1)
    assert not trial.survives(many_patterns_at_once())
    monkeypatch.undo()
    assert trial.survives(AB)
