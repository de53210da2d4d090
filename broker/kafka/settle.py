"""Settling: lines, letters and delays together with the offsets that complete their requests.

        add ─► queue ─► flush ──────────────► flush ───────────► …
                         (one transaction each; the next one takes all that came meanwhile)

No timer gathers settlements: the first one goes at once, and those that come while its transaction is under
way make the next one. So each has a transaction of its own when there is little to do, and transactions grow
with the load. All that is committed is fenced by the group's metadata, so an owner that was overtaken is
refused as a whole.

    committed                       every item is done
    wrong generation                a rebalance went by: again with the next membership, if still held
    not a member                    the tenure ends; its items are refused
    a static member took its place  likewise, where it was this process, thrown out and back again
    producer fenced, state broken   a new producer (it ends what the old one left open), then again
    fate unknown                    likewise, but first the committed offsets tell what happened
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import kafka.errors as ke
from kafka.structs import OffsetAndMetadata, TopicPartition

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.bridge import Worker, fail, resolve
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.commits import Committed, encode_metadata
from headrace.broker.kafka.failures import translate, translated
from headrace.broker.kafka.items import Item, Settled, by_tenure
from headrace.broker.kafka.owner_thread import Membership
from headrace.broker.kafka.transactions import Outcome, Transactions, Untakeable

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_ITEMS = 2_000  # in one transaction
_REJOIN_S = 0.01
_PATIENCE_S = 15.0  # after that a caller hears that the fate of its settlement is unknown


@dataclass(frozen=True, slots=True)
class SettlerParts:
    """What a settler needs of its session.

    `membership`: the snapshot in force. `committed`: reads what the group holds, once no transaction is open.
    `publish`: an acknowledged plain publish, for result lines that need not be exactly once. `fatal`: is told
    of what ends the session. `topics_again`: makes those anew that were deleted; answers why not, of others.
    """

    transactions: Transactions
    transactional_id: str
    servers: str
    membership: Callable[[], Membership | None]
    committed: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Committed]]]
    publish: Callable[[Sequence[Record]], Awaitable[object]]
    fatal: Callable[[BrokerRefused], None]
    topics_again: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]
    exactly_once: bool = True


class Settler:
    """All of a session's commits that follow an assignment, one transaction after the other."""

    def __init__(self, parts: SettlerParts) -> None:
        self._parts = parts
        self._worker = Worker("headrace kafka settle")
        self._queue: list[Item] = []
        self._waiting: dict[tuple[int, int], Item] = {}  # by tenure and offset, until it is done
        self._under_way: set[asyncio.Future[bool]] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="headrace kafka settle")

    async def warm_up(self) -> None:
        """Makes the producer, so that the first settlement need not wait for it."""
        with translated(self._parts.servers):
            await self._worker.call(self._parts.transactions.ready)

    async def add(self, item: Item) -> bool:
        """Whether it was committed. One that is under way already is waited for, not done again. Raises
        BrokerUnavailable while its fate is unknown: it goes on all the same, and may be asked for again."""
        known = None if item.offset is None else self._waiting.get((id(item.tenure), item.offset))
        if known is None:
            known = item
            self.put(item)
        return await self.patiently(known.done)

    async def patiently(self, done: asyncio.Future[T]) -> T:
        """Its result. Raises BrokerUnavailable where that takes too long; it goes on all the same."""
        if not (await asyncio.wait({done}, timeout=_PATIENCE_S))[0]:
            raise BrokerUnavailable(
                f"{self._parts.servers} did not settle in time; is it running, and in reach?"
            )
        return done.result()

    def under_way(self, tenure: Settled, offset: int) -> Item | None:
        """The settlement of a record that goes on, whether its caller waits for it or not."""
        return self._waiting.get((id(tenure), offset))

    def put(self, item: Item) -> asyncio.Future[bool]:
        """The same, for who does not wait, or for ever."""
        if item.offset is not None:
            self._waiting[id(item.tenure), item.offset] = item
        self._queue.append(item)
        self._under_way.add(item.done)
        item.done.add_done_callback(self._under_way.discard)
        self._woken.set()
        return item.done

    async def flushed(self, timeout_s: float) -> None:
        """Returns once all that is under way now is done, or after the time."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=timeout_s)

    async def close(self) -> None:
        """Does not wait for what is under way: call `flushed` before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for item in [*self._queue, *self._waiting.values()]:
            self._answer(item, False)
        closing = asyncio.ensure_future(self._worker.call(self._parts.transactions.discard))
        await asyncio.wait({closing}, timeout=1.0)
        closing.cancel()
        self._worker.stop()

    # ------------------------------------------------------------------------------------------- flushing

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            batch, self._queue = self._queue[:_MOST_ITEMS], self._queue[_MOST_ITEMS:]
            if not batch:
                self._woken.clear()
                continue
            try:
                await self._flush(batch)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # ours: nobody may wait for ever for an answer
                logger.exception("settling failed")
                for item in batch:
                    self._fail(item, BrokerRefused(f"settling failed: {type(error).__name__}: {error}"))

    async def _flush(self, batch: list[Item]) -> None:
        """Repeats until each item is committed, refused or failed."""
        if not self._parts.exactly_once:
            await self._publish_lines(self._still_held(batch))
        while batch := self._still_held(batch):
            membership = self._parts.membership()
            if membership is None or any(item.tenure.member != membership.member_id for item in batch):
                # On the way back into the group; or thrown out of it, which we shall hear of in a moment.
                await asyncio.sleep(_REJOIN_S)
                continue
            commits = self._commits(batch)
            try:
                outcome = await self._attempt(batch, commits, membership)
            except Untakeable as bad:
                self._fail_those_with(batch, bad)
                continue
            except BrokerUnavailable as error:
                logger.debug("a settlement will be repeated: %s", error)
                await asyncio.sleep(10 * _REJOIN_S)
                continue
            except BrokerRefused as error:
                if self._is_of_the_past(membership, error) or await self._is_of_a_few(batch, error):
                    continue
                self._parts.fatal(error)
                for item in batch:
                    self._fail(item, error)
                return
            if outcome is Outcome.UNKNOWN and await self._landed(batch, commits):
                # Of what went meanwhile nobody can tell: all that is left may be what stood there before.
                batch, outcome = self._still_held(batch), Outcome.COMMITTED
            if outcome is Outcome.COMMITTED:
                self._commit(batch)
                return
            if outcome is Outcome.OUTDATED:
                await asyncio.sleep(_REJOIN_S)
            elif outcome is Outcome.ANEW:
                await self._look_at_topics(batch)

    def _is_of_the_past(self, membership: Membership, error: BrokerRefused) -> bool:
        """Whether it was this very process that took the place of that static member, having lost it."""
        if not isinstance(error.__cause__, ke.FencedInstanceIdError):
            return False
        now = self._parts.membership()
        return now is None or now.member_id != membership.member_id

    async def _is_of_a_few(self, batch: Sequence[Item], error: BrokerRefused) -> bool:
        """Whether topics of some readers took nothing from us. Their items have failed then, and the others
        go on."""
        if not isinstance(error.__cause__, ke.TopicAuthorizationFailedError):
            return False
        await self._look_at_topics(batch)
        return any(item.done.done() for item in batch)

    async def _look_at_topics(self, batch: Sequence[Item]) -> None:
        """A topic that its reader deleted, or closed to us, would keep all others of the batch from being
        settled for ever."""
        topics = dict.fromkeys(record.topic for item in batch for record in item.records)
        try:
            refused = await self._parts.topics_again(list(topics))
        except BrokerError as error:
            logger.debug("topics are looked at later: %s", error)
            return
        for item in batch:
            for record in item.records:
                if record.topic in refused and not item.done.done():
                    self._fail(item, BrokerError(refused[record.topic]))

    async def _attempt(
        self, batch: Sequence[Item], commits: Mapping[TopicPartition, Committed], membership: Membership
    ) -> Outcome:
        records = [record for item in batch for record in item.records]
        offsets = {
            partition: OffsetAndMetadata(committed.base, encode_metadata(committed), -1)
            for partition, committed in commits.items()
        }
        transactions = self._parts.transactions
        try:
            return await self._worker.call(lambda: transactions.commit(records, offsets, membership))
        except (ke.KafkaError, OSError) as error:
            translated = translate(error, self._parts.servers)
            if isinstance(translated, BrokerUnavailable | BrokerRefused):
                raise translated from error
            raise BrokerRefused(str(translated)) from error

    def _commits(self, batch: Sequence[Item]) -> dict[TopicPartition, Committed]:
        commits = {}
        for tenure, items in by_tenure(batch).items():
            committed = tenure.commit([item.offset for item in items if item.offset is not None])
            commits[tenure.partition] = replace(committed, transactional_id=self._parts.transactional_id)
        return commits

    async def _landed(self, batch: Sequence[Item], commits: Mapping[TopicPartition, Committed]) -> bool:
        """Whether a transaction of unknown fate was committed. Its items either all were, or none. `commits`:
        as it was sent; meanwhile an epoch was raised, and records were taken."""
        while True:
            try:
                await self._worker.call(self._parts.transactions.ready)  # decides what was open
                found = await self._parts.committed(list(commits))
            except (BrokerUnavailable, ke.KafkaError, OSError) as error:
                logger.debug("the fate of a transaction is still unknown: %s", error)
                await asyncio.sleep(10 * _REJOIN_S)
                if not self._still_held(list(batch)):
                    return False
                continue
            # Of what went meanwhile, its new owner has changed what stands there.
            held = {item.tenure.partition for item in batch if not item.tenure.gone}
            return bool(held) and all(_covers(found.get(partition), commits[partition]) for partition in held)

    def _commit(self, batch: Sequence[Item]) -> None:
        for tenure, items in by_tenure(batch).items():
            tenure.finish([item.offset for item in items if item.offset is not None])
        for item in batch:
            self._answer(item, True)

    async def _publish_lines(self, batch: Sequence[Item]) -> None:
        """At least once: the lines go before the transaction."""
        for item in batch:
            try:
                await self._parts.publish(item.records)
                item.records = ()
            except BrokerError as error:
                logger.debug("lines will go with their transaction: %s", error)

    # ------------------------------------------------------------------------------------------ answering

    def _still_held(self, batch: list[Item]) -> list[Item]:
        held = []
        for item in batch:
            if item.tenure.gone:
                self._answer(item, False)
            elif not item.done.done():
                held.append(item)
        return held

    def _fail_those_with(self, batch: Sequence[Item], bad: Untakeable) -> None:
        error = translate(bad.error, self._parts.servers)
        for item in batch:
            if any(record is bad.record for record in item.records):
                self._fail(item, error if not isinstance(error, BrokerRefused) else BrokerError(str(error)))

    def _answer(self, item: Item, committed: bool) -> None:
        self._forget(item)
        resolve(item.done, committed)

    def _fail(self, item: Item, error: BrokerError) -> None:
        self._forget(item)
        fail(item.done, error)
        item.done.exception()  # it may be that nobody waits

    def _forget(self, item: Item) -> None:
        if item.offset is not None:
            self._waiting.pop((id(item.tenure), item.offset), None)


def _covers(found: Committed | None, wanted: Committed) -> bool:
    """Whether what stands in the group is our commit."""
    return (
        found is not None
        and (found.base, found.beyond, found.epoch) == (wanted.base, wanted.beyond, wanted.epoch)
        and found.transactional_id == wanted.transactional_id
    )
