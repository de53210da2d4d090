"""Parts of answers, for the reply topics of requests that are streamed."""

from __future__ import annotations

import logging

from headrace.broker.contract import Append
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.broker.kafka.codec import Record, chunk_record, size_of
from headrace.broker.kafka.connection import Connection

logger = logging.getLogger(__name__)


class Chunks:
    """They stand beside the transactions, so nothing fences them, and who takes a request over says them
    again. A topic that does not take them loses them: the line goes elsewhere."""

    def __init__(self, connection: Connection) -> None:
        self._topics, self._most_bytes = connection.topics, connection.settings.max_message_bytes

    async def of(self, item: Append) -> list[Record]:
        message, ref = item.delivery.message, item.delivery.ref
        if not item.chunks or not message.stream or message.reply_to is None:
            return []
        try:
            await self._topics.reply_to(message.reply_to)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            logger.warning("chunks of %s are lost: %s", ref.request_id, error)
            return []
        records = [chunk_record(message, ref, chunk) for chunk in item.chunks]
        fitting = [record for record in records if size_of(record) <= self._most_bytes]
        if len(fitting) < len(records):
            logger.warning("chunks of %s are lost: larger than the topic takes", ref.request_id)
        return fitting
