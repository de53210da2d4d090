"""How a request that ends here is settled: its terminal record and its result line."""

from __future__ import annotations

from headrace.broker.contract import DeadLetter, Done, PassOn, Release, Retry, Settlement
from headrace.broker.events import Failed, Finished, Terminal
from headrace.broker.lines.logprobs import Spell
from headrace.broker.lines.output import failure_line, result_id, success_line
from headrace.consumer.endings import Exit
from headrace.consumer.inflight import InFlight


def settlement(flight: InFlight, model: str, created: int, spell: Spell) -> Settlement:
    """`model`: the name that clients see; `created`: unix time in seconds; `spell`: a token's text."""
    ending, terminal = flight.ending, flight.terminal()
    assert ending is not None
    line = _line(flight, terminal, model, created, spell) if terminal is not None else None
    match ending.exit:
        case Exit.DONE:
            return Done(terminal, line, flight.take_rest())
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


def _line(flight: InFlight, terminal: Terminal, model: str, created: int, spell: Spell) -> bytes:
    name = result_id(flight.request_id)
    match terminal:
        case Finished():
            assert flight.parsed is not None
            return success_line(
                flight.parsed,
                result_id=name,
                request_id=flight.request_id,
                model=model,
                text=flight.text,
                finish_reason=terminal.reason,
                usage=terminal.usage,
                created=created,
                logprobs=flight.logprobs,
                spell=spell,
            )
        case Failed():
            return failure_line(
                flight.custom_id,
                result_id=name,
                request_id=flight.request_id,
                failed=terminal,
                partial=flight.text,
            )
