"""The verdict: what the record says should be, held against what the brokers hold."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.checker.evidence import Evidence, Key, Letter, Line
from tests.faults.checker.reading import Reading, read_log
from tests.faults.checker.record import COMPLETE, Accepted, RunRecord
from tests.faults.checker.shown import Flaw, flaws


class Rule(enum.Enum):
    """What was broken."""

    NO_END = "an accepted request has no terminal record"
    SECOND_END = "a request has more than one visible terminal record"
    WRONG_END = "a request ended in a way that is not right for it"
    NO_LINE = "an accepted request has no result line"
    SECOND_LINE = "a request has more than one result line"
    WRONG_LINE = "a result line differs from what the log says"
    OTHER_TEXT = "the text is not the answer, or a beginning of it: stitched, or with a gap"
    WRONG_COUNT = "counts do not add up"
    SHOWN = "a reader was shown what no reader may see"
    CHUNKS = "the chunks of a streamed reply do not add up to its answer"
    LEASE = "a delivery is left that nobody will settle"
    LETTER = "a dead letter is missing, doubled, or without a reason"
    STRANGER = "there is something of a request that nobody has published"
    BROKEN = "an entry cannot be read, or does not fit the others"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    about: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule.name} ({self.rule.value}): {self.about}: {self.detail}"


def judge(record: RunRecord, evidence: Evidence) -> list[Violation]:
    """All violations; none means that the run kept every promise that can be seen from outside."""
    return list(_Case(record, evidence).violations())


class _Case:
    def __init__(self, record: RunRecord, evidence: Evidence) -> None:
        self._record, self._evidence = record, evidence
        self._accepted = {Key(item.tenant, item.request_id): item for item in record.accepted}
        self._readings = {key: read_log(events) for key, events in evidence.logs.items()}
        self._ends: dict[Key, list[Line]] = defaultdict(list)
        self._chunks: dict[Key, list[Line]] = defaultdict(list)
        for line in evidence.lines:
            (self._ends if line.chunk is None else self._chunks)[line.key].append(line)
        self._dead, self._refused = self._sort_letters()

    def violations(self) -> Iterator[Violation]:
        for key, accepted in self._accepted.items():
            yield from self._judge_request(key, accepted)
        yield from self._judge_transcripts()
        yield from self._judge_letters()
        yield from self._judge_strangers()
        yield from self._judge_counts()
        for rule, sentences in (
            (Rule.LEASE, self._evidence.leases),
            (Rule.BROKEN, [*self._evidence.remains, *self._evidence.broken]),
        ):
            yield from (Violation(rule, "the broker", sentence) for sentence in sentences)

    # ------------------------------------------------------------------------------- one request

    def _judge_request(self, key: Key, accepted: Accepted) -> Iterator[Violation]:
        reading, lines = self._readings.get(key, Reading()), self._ends.get(key, [])
        if not accepted.certain and reading.end is None and not lines and not self._evidence.logs.get(key):
            return  # the publish that nobody answered did not happen
        about = str(key.request_id)
        yield from self._judge_log(about, accepted, reading)
        if not lines:
            yield Violation(Rule.NO_LINE, about, f"its log ends with {_end(reading)}")
        if len(lines) > 1:
            yield Violation(
                Rule.SECOND_LINE, about, f"{len(lines)} lines in {[line.topic for line in lines]}"
            )
        for line in lines:
            yield from _judge_line(about, accepted, reading, line)
        yield from _judge_chunks(about, accepted, reading, self._chunks.get(key, []))

    def _judge_log(self, about: str, accepted: Accepted, reading: Reading) -> Iterator[Violation]:
        end = reading.end
        if end is None:
            yield Violation(Rule.NO_END, about, f"{len(reading.token_ids)} tokens stand in its log")
            return
        if reading.late:
            yield Violation(Rule.SECOND_END, about, f"after {_end(reading)}: {reading.late}")
        if end.reason not in accepted.ends:
            yield Violation(Rule.WRONG_END, about, f"{end.reason!r}, where {accepted.ends} was due")
        if not _fits(reading.text, accepted.answer, end.reason in COMPLETE):
            yield Violation(Rule.OTHER_TEXT, about, _difference(reading.text, accepted.answer))
        if end.completion_tokens != len(reading.token_ids):
            counted = f"{end.completion_tokens} counted, {len(reading.token_ids)} stand there"
            yield Violation(Rule.WRONG_COUNT, about, f"tokens in the log: {counted}")
        for event in reading.unannounced:
            yield Violation(Rule.BROKEN, about, f"delta {event.seq} of epoch {event.epoch}, never announced")
        for event in reading.wrong_kept:
            yield Violation(Rule.BROKEN, about, f"a start keeps {event.kept} tokens, others stand there")

    # --------------------------------------------------------------------------------- the whole

    def _judge_transcripts(self) -> Iterator[Violation]:
        for transcript in self._record.transcripts:
            key = Key(transcript.tenant, transcript.request_id)
            reading = self._readings.get(key, Reading())
            found: Sequence[Flaw] = flaws(transcript, reading)
            for flaw in found:
                yield Violation(Rule.SHOWN, transcript.request_id, str(flaw))

    def _sort_letters(self) -> tuple[dict[Key, list[Letter]], list[Letter]]:
        """Letters of accepted requests, and those of messages that are none: a conflict names the id of
        somebody else's request, so the body decides where it is known."""
        dead: dict[Key, list[Letter]] = defaultdict(list)
        others = []
        for letter in self._evidence.letters:
            accepted = self._accepted.get(letter.key)
            if accepted is not None and accepted.body in (None, letter.body):
                dead[letter.key].append(letter)
            else:
                others.append(letter)
        return dead, others

    def _judge_letters(self) -> Iterator[Violation]:
        for key, letters in self._dead.items():
            reading = self._readings.get(key, Reading())
            if len(letters) > 1:
                yield Violation(Rule.LETTER, key.request_id, f"{len(letters)} letters")
            if reading.end is None or reading.end.kind != "failed":
                yield Violation(Rule.LETTER, key.request_id, f"dead, but its log ends with {_end(reading)}")
        for letter in self._evidence.letters:
            if not letter.reason or not letter.origin:
                yield Violation(Rule.LETTER, letter.key.request_id, "without a reason, or an origin")
        yield from self._judge_rubbish()

    def _judge_rubbish(self) -> Iterator[Violation]:
        """Each piece of rubbish must be there as often as it was sent."""
        left = list(self._refused)
        for item in self._record.rubbish:
            found = next((x for x in left if x.body == item.body and item.because in x.reason), None)
            if found is None:
                yield Violation(Rule.LETTER, repr(item.body[:60]), f"no letter because of {item.because!r}")
            else:
                left.remove(found)
        if not self._record.others:
            for letter in left:
                yield Violation(Rule.LETTER, letter.key.request_id, f"nobody expects it: {letter.reason}")

    def _judge_strangers(self) -> Iterator[Violation]:
        if self._record.others:
            return
        for key in self._readings.keys() - self._accepted.keys():
            yield Violation(Rule.STRANGER, key.request_id, "a log")
        for key in (self._ends.keys() | self._chunks.keys()) - self._accepted.keys():
            yield Violation(Rule.STRANGER, key.request_id, "a result line, or a chunk")

    def _judge_counts(self) -> Iterator[Violation]:
        """Accepted = finished + failed + dead, by three ways of counting: logs, lines, and letters."""
        ends = [(key, self._readings[key].end) for key in self._accepted if key in self._readings]
        kinds = Counter("dead" if key in self._dead else end.kind for key, end in ends if end is not None)
        lines = sum(len(self._ends.get(key, [])) for key in self._accepted)
        certain = sum(item.certain for item in self._accepted.values())
        total = sum(kinds.values())
        if not certain <= total <= len(self._accepted) or lines != total:
            counted = f"{certain} to {len(self._accepted)} accepted, {dict(kinds)} in the logs, {lines} lines"
            yield Violation(Rule.WRONG_COUNT, "the run", counted)


def _judge_line(about: str, accepted: Accepted, reading: Reading, line: Line) -> Iterator[Violation]:
    wrong = []
    if line.topic != accepted.topic:
        wrong.append(f"it stands in {line.topic!r}, {accepted.topic!r} was due")
    if line.custom_id != accepted.custom_id:
        wrong.append(f"custom_id {line.custom_id!r}, {accepted.custom_id!r} was sent")
    if reading.end is not None and line.reason != reading.end.reason:
        wrong.append(f"it says {line.reason!r}, the log {reading.end.reason!r}")
    if line.text != reading.text and (line.complete or line.text):
        wrong.append(_difference(line.text, reading.text))
    tokens = line.completion_tokens
    if tokens is not None and tokens != len(reading.token_ids):
        wrong.append(f"it counts {tokens} tokens, the log holds {len(reading.token_ids)}")
    yield from (Violation(Rule.WRONG_LINE, about, sentence) for sentence in wrong)


def _judge_chunks(
    about: str, accepted: Accepted, reading: Reading, lines: Sequence[Line]
) -> Iterator[Violation]:
    """As a reader of a streamed reply puts it together: what is not newer does not count."""
    if lines and not accepted.streamed:
        yield Violation(Rule.CHUNKS, about, f"{len(lines)} chunks, and it asked for none")
    for topic in {line.topic for line in lines} - {accepted.topic}:
        yield Violation(Rule.CHUNKS, about, f"chunks stand in {topic!r}, {accepted.topic!r} was due")
    text, newest = "", (0, -1)
    for chunk in (line.chunk for line in lines):
        if chunk is None or (chunk.epoch, chunk.seq) <= newest:
            continue
        newest = chunk.epoch, chunk.seq
        if chunk.offset > len(text):
            yield Violation(Rule.CHUNKS, about, f"they leave a gap before character {chunk.offset}")
        text = text[: chunk.offset] + chunk.content
        if not accepted.answer.startswith(text):
            yield Violation(Rule.CHUNKS, about, _difference(text, accepted.answer))
    complete = reading.end is not None and reading.end.reason in COMPLETE
    if accepted.streamed and complete and text != reading.text:
        yield Violation(Rule.CHUNKS, about, _difference(text, reading.text))


def _fits(text: str, answer: str, complete: bool) -> bool:
    return text == answer if complete else answer.startswith(text)


def _end(reading: Reading) -> str:
    return "nothing" if reading.end is None else f"{reading.end.kind} ({reading.end.reason})"


def _difference(text: str, wanted: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), None)
    if at is None:
        return f"{len(text)} characters, {len(wanted)} were due"
    return f"at character {at}: {text[at : at + 30]!r}, {wanted[at : at + 30]!r} was due"
