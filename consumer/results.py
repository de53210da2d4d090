"""How a request that ends here is settled: its terminal record and its result line."""

from __future__ import annotations

from headrace.broker.contract import DeadLetter, Done, PassOn, Release, Retry, Settlement
from headrace.broker.events import Failed, Finished, Terminal
from headrace.broker.lines.logprobs import Prompt, Spell
from headrace.broker.lines.output import Choice, embeddings_line, failure_line, result_id, success_line
from headrace.consumer.answers import Answer
from headrace.consumer.endings import Exit
from headrace.consumer.failures import RESULT_TOO_LARGE
from headrace.consumer.inflight import InFlight
from headrace.consumer.rest import take_rest
from headrace.consumer.tools import calls_in, read_answer


def settlement(flight: InFlight, line: bytes | None) -> Settlement:
    """Under the epoch in force. `line`: that of the terminal record, if there was one when it was made."""
    ending, terminal = flight.ending, flight.terminal()
    assert ending is not None
    line = None if terminal is None else line
    match ending.exit:
        case Exit.DONE:
            return Done(terminal, line, take_rest(flight))
        case Exit.DEAD_LETTER:
            return DeadLetter(ending.reason, terminal, line)
        case Exit.RELEASE:
            return Release(ending.reason) if ending.reason else Release()
        case Exit.RETRY:
            return Retry(ending.delay_ms, ending.reason)
        case Exit.MOVE:
            return PassOn(ending.pool)
        case Exit.DROP:
            raise AssertionError("what somebody else owns is not settled")


def result_line(
    flight: InFlight, terminal: Terminal, model: str, created: int, spell: Spell, *, with_text: bool = True
) -> bytes:
    """`model`: the name that clients see; `created`: unix time in seconds; `spell`: a token's text.
    `with_text`: a failure's line tells the text so far."""
    match terminal:
        case Finished():
            return _result(flight, terminal, model, created, spell)
        case Failed():
            return failure_line(
                flight.custom_id,
                result_id=result_id(flight.request_id),
                request_id=flight.request_id,
                failed=terminal,
                # Its text may be what was too large; the log has it.
                partial=flight.answers[0].text if with_text and terminal.code != RESULT_TOO_LARGE else "",
            )


def is_of_numbers(flight: InFlight) -> bool:
    """Whether its line holds vectors or log probabilities: making it takes milliseconds to seconds."""
    if flight.parsed is None:
        return False
    sampling = flight.parsed.sampling
    scores = (sampling.logprobs, sampling.prompt_logprobs)
    return flight.parsed.embedding is not None or scores != (None, None)


def _result(flight: InFlight, terminal: Finished, model: str, created: int, spell: Spell) -> bytes:
    parsed, name = flight.parsed, result_id(flight.request_id)
    assert parsed is not None
    if parsed.embedding is not None:
        return embeddings_line(
            parsed,
            result_id=name,
            request_id=flight.request_id,
            model=model,
            vectors=terminal.embeddings,
            usage=terminal.usage,
        )
    reasons = terminal.reasons or (terminal.reason,)
    return success_line(
        parsed,
        result_id=name,
        request_id=flight.request_id,
        model=model,
        choices=[
            _choice(flight, answer, reason) for answer, reason in zip(flight.answers, reasons, strict=True)
        ],
        usage=terminal.usage,
        created=created,
        prompt=_prompt(flight),
        spell=spell,
    )


def _choice(flight: InFlight, answer: Answer, reason: str) -> Choice:
    assert flight.parsed is not None
    reply = read_answer(flight.parsed, flight.call_format, answer.text)
    return Choice(reply.text, reason, answer.logprobs, calls_in(reply))


def _prompt(flight: InFlight) -> Prompt | None:
    """With its log probabilities, where the engine was asked for them."""
    prepared = flight.prepared
    if prepared is None or prepared.params.prompt_logprobs is None:
        return None
    return Prompt(prepared.prompt_ids, flight.answers.prompt_logprobs)
