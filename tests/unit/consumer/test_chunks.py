"""Chunks on a reply topic: whatever is repeated, taken over or begun anew, a reader ends up with the text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.contract import Opened, OpenOutcome
from headrace.broker.events import Event, Started
from headrace.broker.fold import Answer, fold
from headrace.broker.lines.request import ParsedRequest, Sampling
from headrace.consumer.chunks import chunks_of
from headrace.consumer.inflight import InFlight
from headrace.consumer.prepare import Prepared
from headrace.gpu_engine.api import Output, SamplingParams
from tests.unit.consumer.fakes import NOW_MS, delivery

PREPARED = Prepared([1], SamplingParams())


@dataclass
class Reader:
    """The rule of `chunk_line`'s docstring, and nothing else."""

    text: dict[int, str] = field(default_factory=dict)
    highest: dict[int, tuple[int, int]] = field(default_factory=dict)

    def read(self, line: bytes) -> None:
        chunk = json.loads(line)
        [choice] = chunk["choices"]
        index, place = choice["index"], (chunk["epoch"], chunk["seq"])
        if place > self.highest.get(index, (0, -1)):
            self.highest[index] = place
            self.text[index] = self.text.get(index, "")[: chunk["offset"]] + choice["delta"]["content"]


@dataclass
class Topic:
    """A log and the chunks beside it, some of them more than once."""

    log: list[Event] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)  # each once, whatever became of it
    epoch: int = 0
    answers: int = 1

    def text(self, index: int = 0) -> str:
        reader = Reader()
        for chunk in self.chunks:
            reader.read(chunk)
        return reader.text.get(index, "")


def begin(
    topic: Topic,
    *,
    keeps: bool = True,
    marked: bool = False,
    reply_to: str | None = "t",
    stream: bool = True,
) -> InFlight:
    """An owner takes the request over; `marked`: it has read the body only when the log said so."""
    topic.epoch += 1
    state = fold(topic.log)
    flight = InFlight(delivery(stream=stream, reply_to=reply_to), 0.0)
    flight.opened(Opened(OpenOutcome.RUN, topic.epoch, state, False, NOW_MS))
    if marked:
        flight.mark(Started(topic.epoch, "c", "d", 0, b"h", "", kept=state.num_tokens), 0.0)
        assert publish(topic, flight) == []
        acknowledge(flight)
    flight.parsed = ParsedRequest("/v1/chat/completions", "c", "m", None, None, Sampling())
    kept = state.num_tokens if keeps else 0
    texts = [state.answers.get(index, Answer()).text for index in range(topic.answers)]
    replayed = Prepared([1], SamplingParams(n=topic.answers), tuple(texts) if keeps else ())
    flight.begin(replayed, Started(topic.epoch, "c", "d", 1, b"h", "f", kept=kept), 0.0)
    flight.placed("k", 1)
    return flight


def publish(topic: Topic, flight: InFlight, *, lands: str = "events and chunks") -> list[bytes]:
    """One append; returns its chunks. It is acknowledged only if the caller says so. On Kafka its events and
    its chunks have fates of their own."""
    assert flight.outbox is not None
    if flight.outbox.empty:
        return []
    events = flight.outbox.take()
    chunks = chunks_of(flight, events, model="m", created=1)
    topic.log.extend(events if "events" in lands else ())
    topic.chunks.extend(chunks if "chunks" in lands else ())
    topic.made.extend(chunks)
    return chunks


def acknowledge(flight: InFlight) -> None:
    assert flight.outbox is not None
    flight.outbox.acknowledged()


def test_each_delta_with_text_is_a_chunk_that_says_where_it_stands() -> None:
    topic = Topic()
    flight = begin(topic)
    for text in ("Hé", "", "llo"):
        flight.received(Output(id="k", token_ids=[1], text=text), 0.0)
        publish(topic, flight)
        acknowledge(flight)
    fields = [json.loads(chunk) for chunk in topic.chunks]
    assert [(one["epoch"], one["seq"], one["offset"]) for one in fields] == [(1, 0, 0), (1, 2, 2)]
    assert fields[0]["choices"][0]["delta"] == {"role": "assistant", "content": "Hé"}
    assert fields[1]["choices"][0]["delta"] == {"content": "llo"}


def test_who_takes_over_says_all_so_far_again() -> None:
    topic = Topic()
    flight = begin(topic)
    flight.received(Output(id="k", token_ids=[1], text="Hello"), 0.0)
    publish(topic, flight)
    successor = begin(topic)
    [chunk] = publish(topic, successor)
    fields = json.loads(chunk)
    assert (fields["epoch"], fields["offset"]) == (2, 0)
    assert fields["choices"][0]["delta"]["content"] == "Hello"


def test_who_has_marked_the_request_first_says_all_so_far_again_too() -> None:
    topic = Topic()
    flight = begin(topic)
    flight.received(Output(id="k", token_ids=[1], text="Hello"), 0.0)
    publish(topic, flight)
    successor = begin(topic, marked=True)
    [chunk] = publish(topic, successor)
    assert json.loads(chunk)["choices"][0]["delta"]["content"] == "Hello"


def test_who_begins_anew_and_has_nothing_yet_takes_back_what_was_said() -> None:
    topic = Topic(answers=2)
    flight = begin(topic)
    flight.received(Output(id="k", token_ids=[1], text="Hello"), 0.0)
    publish(topic, flight)
    successor = begin(topic, keeps=False)
    publish(topic, successor)
    acknowledge(successor)
    assert topic.text() == fold(topic.log).text == ""
    successor.received(Output(id="k", token_ids=[1], text="Bye"), 0.0)
    publish(topic, successor)
    assert topic.text() == "Bye"


def test_an_owner_whose_engine_died_says_nothing_twice() -> None:
    topic = Topic()
    flight = begin(topic)
    flight.received(Output(id="k", token_ids=[1], text="Hello"), 0.0)
    publish(topic, flight)
    acknowledge(flight)
    flight.state_deaths(alone=False)
    assert publish(topic, flight) == []
    acknowledge(flight)
    flight.received(Output(id="k", token_ids=[2], text=" you"), 0.0)
    [chunk] = publish(topic, flight)
    assert json.loads(chunk)["offset"] == 5
    assert topic.text() == "Hello you"


def test_nobody_who_did_not_ask_gets_chunks() -> None:
    for asks in ({"reply_to": None}, {"stream": False}):
        topic = Topic()
        flight = begin(topic, **asks)
        flight.received(Output(id="k", token_ids=[1], text="Hello"), 0.0)
        assert publish(topic, flight) == []


FATES = ["nothing", "events", "chunks", "events and chunks"]
TAKE_OVERS = ["take over", "marked take over", "restart", "marked restart"]
MOVES = ["token", "silent", "publish", *FATES, *TAKE_OVERS, "death", "repeat", "stale"]


@settings(deadline=None, max_examples=300)
@given(
    moves=st.lists(st.sampled_from(MOVES), max_size=40), picks=st.integers(0, 1000), answers=st.integers(1, 3)
)
def test_a_reader_that_follows_the_rule_ends_up_with_the_text_of_the_log(
    moves: list[str], picks: int, answers: int
) -> None:
    topic = Topic(answers=answers)
    flight, stale = begin(topic), list[InFlight]()
    for number, move in enumerate(moves):
        assert flight.outbox is not None
        match move:
            case "token" | "silent":
                text = f"<{number}>" if move == "token" else ""
                index = number % answers
                flight.received(Output(id="k", index=index, token_ids=[number], text=text), 0.0)
            case "publish":
                publish(topic, flight)
                acknowledge(flight)
            case fate if fate in FATES and not flight.outbox.empty:
                publish(topic, flight, lands=fate)
                topic.epoch += 1
                assert flight.outbox.reopened(topic.epoch, fold(topic.log), NOW_MS)
            case take_over if take_over in TAKE_OVERS:
                stale.append(flight)
                flight = begin(topic, keeps="restart" not in move, marked="marked" in move)
            case "death":
                flight.state_deaths(alone=False)
            case "repeat" if topic.chunks:
                topic.chunks.append(topic.chunks[picks % len(topic.chunks)])
            case "stale" if stale:  # Kafka: its chunks get through, its events are void
                late = stale.pop()
                late.received(Output(id="k", token_ids=[7], text="stale"), 0.0)
                topic.chunks.extend(publish(Topic(), late, lands="nothing"))
    for index in range(answers):
        flight.received(Output(id="k", index=index, token_ids=[0], text="end"), 0.0)
    publish(topic, flight)
    logged = fold(topic.log).answers
    assert [topic.text(index) for index in range(answers)] == [logged[index].text for index in range(answers)]
    made = map(json.loads, topic.made)
    places = [(chunk["epoch"], chunk["seq"], chunk["choices"][0]["index"]) for chunk in made]
    assert len(set(places)) == len(places), "what is repeated can be told apart"
