"""A request for a model that is not served here: to a pool that serves it, or back to its client.

| who serves the model                   | then                                                             |
|----------------------------------------|------------------------------------------------------------------|
| another pool                           | passed on to it, once, before its first token                    |
| others of our own pool                 | put off: the pool is just being changed, it may meet one of them |
| nobody, or it was passed on before     | it fails with the names of what is served                        |
| nobody can tell, the registry is away  | put off                                                          |

Only once, so that pools whose entries in the registry are out of date do not play it back and forth.
"""

from __future__ import annotations

from headrace.broker.errors import BrokerUnavailable
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.failures import nobody_serves
from headrace.consumer.inflight import InFlight
from headrace.consumer.means import Means


async def redirect(flight: InFlight, model: str, means: Means) -> None:
    """Decides how the request leaves."""
    neighbours = means.neighbours
    try:
        pool = await neighbours.pool_for(model)
        peer = await neighbours.peer_serves(model)
        others = await neighbours.served()
    except BrokerUnavailable as error:
        means.retries.put_off(flight, str(error))
        return
    if pool is not None and _may_move(flight, means):
        flight.end(Ending(Exit.MOVE, pool=pool))
    elif peer:
        means.retries.put_off(flight, f"the model {model[:100]!r} is served by others of this pool only")
    else:
        own = means.preparer.shown
        flight.fail(nobody_serves(model, [*own, *(name for name in others if name not in own)]))


def _may_move(flight: InFlight, means: Means) -> bool:
    """A log that moved says so, but on Kafka it begins anew at its new place; the position tells there."""
    moved = flight.past.moved or not means.rules.published_here(flight.delivery)
    return not moved and not flight.answers.num_tokens
