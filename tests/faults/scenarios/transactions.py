"""SIGKILL inside an open transaction, aimed: not at an instant, but at a state that the broker tells."""

from __future__ import annotations

import asyncio

from tests.faults.open_transactions import OpenTransaction, OpenTransactions
from tests.faults.run import Run
from tests.faults.stack import alive, pid_of

_CAUGHT_S = 30.0
_ENDED_S = 10.0  # half of the time after which the broker itself would end it
_SEEN_S = 0.1  # what a frozen process has sent by then has arrived


async def killed_inside_a_transaction(run: Run) -> None:
    """Its lines are never seen, its successor aborts it and settles what it held."""
    with OpenTransactions(run.server.url, run.prefix) as transactions:
        async with run.load(streams=10, tokens=(1, 6)):
            for _ in range(2 * run.rounds):
                caught = await _frozen_inside(run, transactions)
                pid = pid_of(caught.name)
                assert pid is not None
                run.stack.kill(pid)
                took = await _until_ended(transactions, caught)
                what = "with" if caught.has_offsets else "without"
                run.notes.append(f"killed in a transaction {what} offsets: aborted after {took:.1f} s")


async def _frozen_inside(run: Run, transactions: OpenTransactions) -> OpenTransaction:
    """A consumer stopped while its transaction is open. Most end before the signal comes: those go on."""
    async with asyncio.timeout(_CAUGHT_S):
        while True:
            alone = await asyncio.to_thread(transactions.members) < 2  # without a successor
            found = await asyncio.to_thread(transactions.first)
            pid = pid_of(found.name) if found else None
            if found is None or pid is None or not alive(pid) or alone:
                await asyncio.sleep(0.005)
                continue
            run.stack.freeze(pid)
            await asyncio.sleep(_SEEN_S)
            still = await asyncio.to_thread(transactions.described, found.name)
            if still is not None:
                return still
            run.stack.thaw(pid)
            await asyncio.sleep(run.rng.uniform(0, 0.05))


async def _until_ended(transactions: OpenTransactions, caught: OpenTransaction) -> float:
    """Seconds until the broker says that it is over."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while await asyncio.to_thread(transactions.described, caught.name) == caught:
        took = loop.time() - began
        assert took < _ENDED_S, f"a transaction was open {took:.0f} s after its owner's death: {caught}"
        await asyncio.sleep(0.05)
    return loop.time() - began
