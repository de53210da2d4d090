"""Takes deliveries out of the partitions that a session holds: by order of lanes, the oldest first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from headrace.broker.kafka.burials import Burials
from headrace.broker.kafka.group_reader import GroupReader
from headrace.broker.kafka.holdings import Holdings
from headrace.broker.lanes import Preference, Share
from headrace.broker.message import Delivery, Lane

_LOOK_S = 1.0  # for what is known to stand in our partitions


class Taking:
    """`is_paused`: whether nothing is taken from a lane at present."""

    def __init__(
        self,
        holdings: Holdings,
        reader: GroupReader,
        burials: Burials,
        lanes: Sequence[Lane],
        is_paused: Callable[[Lane], bool],
    ) -> None:
        self._holdings, self._reader, self._burials = holdings, reader, burials
        self._preference = Preference(lanes)
        self._is_paused = is_paused

    async def look(self) -> None:
        """For who does not wait: what was published before is fetched, a moment later in the worst case."""
        partitions = list(self._holdings.tenures)
        for partition, bounds in (await self._reader.bounds(partitions)).items() if partitions else ():
            tenure = self._holdings.tenures.get(partition)
            if tenure is not None:
                tenure.known_end = bounds.end
        until = time.monotonic() + _LOOK_S
        while self._holdings.behind and (left := until - time.monotonic()) > 0:
            await self._holdings.changed(left)

    async def bury(self) -> None:
        """What stands in front and is no message: nothing behind it can be taken before."""
        tenures = list(self._holdings.tenures.values())
        found = [(tenure, bad) for tenure in tenures for bad in tenure.take_bad()]
        if found:
            await self._burials.bury(found)

    def take(self, limit: int, reserved: int) -> list[Delivery]:
        """Takes by order of lanes. It awaits nothing, so a cancelled pull leaves nothing half taken."""
        plan = self._preference.plan(limit, reserved)
        taken: list[Delivery] = []
        for share in plan:
            bound = limit if share.lane is Lane.INTERACTIVE else limit - reserved
            taken += self._take_share(share, bound - len(taken))
        self._preference.taken(Counter(delivery.message.lane for delivery in taken), plan)
        if taken:
            self._holdings.flow()
        return taken

    def _take_share(self, share: Share, room: int) -> list[Delivery]:
        """The oldest first, whichever partition of the lane it stands in."""
        taken: list[Delivery] = []
        if self._is_paused(share.lane):
            return taken
        tenures = self._holdings.of_lane(share.lane)
        while len(taken) < min(share.at_most, room):
            heads = [(at_ms, n) for n, t in enumerate(tenures) if (at_ms := t.oldest_ms()) is not None]
            if not heads:
                break
            taken.append(tenures[min(heads)[1]].take())
        return taken
