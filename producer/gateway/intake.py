"""The way of a request onto the queue: which pool, is there room, where does its body lie, what is its id.

Message ──route──► pool ──depth──► room ──check in──► claim ──place──► id ──publish──► durable
"""

from __future__ import annotations

from msgspec import structs

from headrace.broker.blobs import BlobStore, check_in
from headrace.broker.contract import Broker, Conflict, Published
from headrace.broker.errors import BrokerError
from headrace.broker.ids import new_request_id
from headrace.broker.message import Message
from headrace.producer.gateway import status
from headrace.producer.gateway.lane_depth import LaneDepths
from headrace.producer.gateway.routes import Routes
from headrace.producer.gateway.status import Refusal


class Intake:
    """`blobs` None: all bodies travel in their messages."""

    def __init__(
        self, broker: Broker, routes: Routes, depths: LaneDepths, blobs: BlobStore | None = None
    ) -> None:
        self._broker = broker
        self._routes = routes
        self._depths = depths
        self._blobs = blobs

    async def publish(self, message: Message, model: str) -> Published | Refusal:
        """Returns once the request is durable, under an id of our making where it had none; or why not."""
        try:
            return await self._publish(message, model)
        except BrokerError as error:
            return status.from_broker(error)

    async def _publish(self, message: Message, model: str) -> Published | Refusal:
        pool = await self._routes.pool_for(model, message.lane)
        if isinstance(pool, Refusal):
            return pool
        if full := await self._depths.enter(message.lane, pool):
            return full
        try:
            message = await check_in(message, self._blobs)
            request_id = message.request_id or self._new_id(message, pool)
            [result] = await self._broker.publish(
                [structs.replace(message, pool=pool, request_id=request_id)]
            )
        finally:
            self._depths.published(message.lane, pool)
        return status.taken(result.ref.request_id) if isinstance(result, Conflict) else result

    def _new_id(self, message: Message, pool: str) -> str:
        return new_request_id(message.lane, self._broker.place(message.lane, pool))
