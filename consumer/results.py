"""How a request that ends here is settled: its terminal record and its result line."""

from __future__ import annotations

from headrace.broker.contract import DeadLetter, Done, Release, Retry, Settlement
from headrace.broker.events import Failed, Finished, Terminal
from headrace.broker.lines.output import failure_line, result_id, success_line
from headrace.consumer.inflight import Exit, InFlight

RETRY_MS = 30_000


def settlement(flight: InFlight, model: str, created: int) -> Settlement:
    """`model`: the name that clients see; `created`: unix time in seconds."""
    ending, terminal = flight.ending, flight.terminal()
    assert ending is not None
    assert ending.exit is not Exit.DROP
    if ending.exit is Exit.RELEASE:
        return Release()
    if ending.exit is Exit.RETRY:
        return Retry(RETRY_MS, ending.reason)
    line = _line(flight, terminal, model, created) if terminal is not None else None
    if ending.exit is Exit.DEAD_LETTER:
        return DeadLetter(ending.reason, terminal, line)
    return Done(terminal, line)


def _line(flight: InFlight, terminal: Terminal, model: str, created: int) -> bytes:
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
            )
        case Failed():
            return failure_line(
                flight.custom_id,
                result_id=name,
                request_id=flight.request_id,
                failed=terminal,
                partial=flight.text,
            )
