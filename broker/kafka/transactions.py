"""The transactional producer of a session: lines and offsets, all of them or nothing."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kafka.errors as ke
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from headrace.broker.kafka.clients import abandon
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.owner_thread import Membership
from headrace.broker.kafka.publisher import send_record

logger = logging.getLogger(__name__)

_NEVER_TAKEN = (
    ke.MessageSizeTooLargeError,
    ke.RecordListTooLargeError,
    ke.InvalidRecordError,
    ke.InvalidTimestampError,
    ke.InvalidTopicError,
)

TRANSACTION_MS = 20_000  # a dead owner's open transaction ends by itself after that
ANSWER_S = 8.0  # longer than a leader takes to move; the client by itself would wait for ever


class Outcome(enum.Enum):
    COMMITTED = enum.auto()
    OUTDATED = enum.auto()  # the group refused the membership
    ANEW = enum.auto()  # nothing was committed; the producer is of no use any more
    UNKNOWN = enum.auto()  # nor is it here, and whether it committed is not known


class Untakeable(Exception):
    """One record can never be sent; the transaction was aborted."""

    def __init__(self, record: Record, error: BaseException) -> None:
        super().__init__(str(error))
        self.record, self.error = record, error


class Transactions:
    """The transactional producer; each method blocks, and runs on one thread."""

    def __init__(self, options: Mapping[str, Any], transactional_id: str, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._options = {
            **options,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": TRANSACTION_MS,
        }
        self._producer: KafkaProducer | None = None

    def ready(self) -> KafkaProducer:
        """Made where there is none; that ends what a former producer of this id left open."""
        if self._producer is None:
            producer = KafkaProducer(**self._options)
            try:
                producer.init_transactions()
            except BaseException:
                abandon(producer)
                raise
            self._producer = producer
        return self._producer

    def commit(
        self,
        records: Sequence[Record],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        membership: Membership,
    ) -> Outcome:
        """One transaction. Raises `Untakeable`, FencedInstanceIdError of a twin that took our place, and
        AuthorizationError."""
        producer = self.ready()
        producer.begin_transaction()
        try:
            self._fill(producer, records, offsets, membership)
        except Untakeable:
            self._abort()
            raise
        except (ke.CommitFailedError, ke.FencedInstanceIdError, ke.AuthorizationError) as error:
            # kafka-python keeps the offsets that were refused, or that a refused topic kept from being sent,
            # and sends them with the producer's next transaction: under a membership that is in force by
            # then, for partitions that are somebody else's. What a successor has finished would be unfinished
            # again, and a record finished whose line was never emitted.
            self._abort()
            self.discard()
            if isinstance(error, ke.CommitFailedError):
                return Outcome.OUTDATED
            raise
        except (ke.KafkaError, OSError) as error:
            logger.debug("a transaction failed before its end: %r", error)
            self.discard()
            return Outcome.ANEW
        try:
            self._answered(producer, lambda manager: manager.begin_commit())
        except (ke.KafkaError, OSError) as error:
            logger.debug("the end of a transaction failed: %r", error)
            self.discard()
            return Outcome.UNKNOWN
        return Outcome.COMMITTED

    def _fill(
        self,
        producer: KafkaProducer,
        records: Sequence[Record],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        membership: Membership,
    ) -> None:
        """Returns when all of it is acknowledged. Not before may its end be asked for: kafka-python gives a
        record up whose time is over, tells its future alone, and commits the others."""
        sent = [_send(producer, record) for record in records]
        self._answered(producer, lambda manager: manager.send_offsets_to_transaction(offsets, membership))
        for record, answer in zip(records, sent, strict=True):
            try:
                answer.get(timeout=self._answer_s)
            except _NEVER_TAKEN as error:
                raise Untakeable(record, error) from error

    def _answered(self, producer: KafkaProducer, ask: Callable[[Any], Any]) -> None:
        """One step of a transaction, as the producer's method of that name does it, but for a limit: a client
        that looks for a coordinator on nodes that come and go may never find an answer."""
        answer = ask(producer._transaction_manager)
        producer._sender.wakeup()
        if not answer.wait(timeout_ms=self._answer_s * 1000):
            raise ke.KafkaTimeoutError(f"no answer from the coordinator for {self._answer_s:g} s")

    def discard(self) -> None:
        """The next call makes a new producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            abandon(producer)

    def _abort(self) -> None:
        assert self._producer is not None
        try:
            self._answered(self._producer, lambda manager: manager.begin_abort())
        except (ke.KafkaError, OSError):
            self.discard()


def _send(producer: KafkaProducer, record: Record) -> Any:
    """Its future. What cannot be sent at all is raised here, before anything of it is in the transaction."""
    try:
        return send_record(producer, record)
    except (*_NEVER_TAKEN, ValueError, TypeError) as error:
        raise Untakeable(record, error) from error
