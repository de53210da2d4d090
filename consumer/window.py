"""How many requests a consumer holds at a time, and how many of them it serves.

    ├── slots: served ──┤├── room: pulled, waiting for their turn ──┤├── reserve: interactive only ──┤
    slots = batch size + margin       margin = a quarter of the batch size, at least 2

The engine runs `max_batch_size` requests at once. The margin keeps the next ones parsed, tokenised and
waiting inside the engine, so that a slot that frees is filled in the same step; it also covers those whose
last round trip to the broker is under way. A request fills its slot until it is settled, so when the
broker is away the engine goes on up to the window, and memory stays bounded.

The room lets the consumer choose (`waiting_room`): up to `times` the slots are held, running and waiting. But
what one consumer holds without running it, an idle peer cannot take; so near the end of a backlog the room
shrinks:

    room ≤ (what waits in the queue) / (2 · consumers)

Where nothing is gained by choosing (`variety`: all that comes is alike), the room is no larger than half the
slots: enough to fill freed ones without a round trip each, and a slow consumer keeps little that an idle one
could run.

The first bound is factoring, a form of guided self-scheduling (Hummel, Schonberg, Flynn 1992): everybody
takes a fraction of its share of the rest, so that all end at about the same time.

Interactive requests do not wait behind the others: when all is full, `reserve` of them are still pulled and
given to the engine, which preempts what runs there.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN_SHARE = 4
MARGIN_LEAST = 2
CAUTION = 2  # a consumer takes this part of its share of the backlog at a time


def slots_for(max_batch_size: int) -> int:
    """Slots for an engine that runs `max_batch_size` requests at once."""
    return max_batch_size + max(MARGIN_LEAST, -(-max_batch_size // MARGIN_SHARE))


def room_of_alike(slots: int) -> int:
    """How many may wait where the order does not matter."""
    return max(MARGIN_LEAST, slots // 2)


def reserve_for(slots: int) -> int:
    """Interactive requests beyond everything else, where the settings do not say."""
    return max(MARGIN_LEAST, slots // MARGIN_SHARE)


def fair_room(backlog: int, consumers: int) -> int:
    """How many may wait here, of `backlog` that wait in the queue of so many consumers."""
    return backlog // (CAUTION * max(1, consumers))


@dataclass(frozen=True, slots=True)
class Ask:
    """How many deliveries to pull; the last `reserved` of them are for the interactive lane."""

    limit: int
    reserved: int

    @property
    def shared(self) -> int:
        return self.limit - self.reserved


@dataclass(frozen=True, slots=True)
class Window:
    """`slots`: served at a time; `room`: waiting at most, of `room_bytes` at most (one pull beyond);
    `reserve`: interactive ones beyond both."""

    slots: int
    room: int
    reserve: int
    room_bytes: int

    def ask(self, *, held: int, waiting: int, waiting_bytes: int, room: int, alike: bool) -> Ask:
        """What to pull. `held`: deliveries that are waiting or served; `room`: how large it may be now;
        `alike`: there is nothing to choose. While some wait it is filled by halves, not one by one: a pull is
        a round trip."""
        largest = min(self.room, room_of_alike(self.slots)) if alike else self.room
        room = min(largest, room) if waiting_bytes < self.room_bytes else 0
        shared = max(0, self.slots + room - held)
        if waiting and 2 * shared < room:
            shared = 0
        reserved = min(self.reserve, max(0, self.slots + self.room + self.reserve - held))
        return Ask(shared + reserved, reserved)

    def may_serve(self, serving: int) -> bool:
        """Whether the next request of any lane has a slot."""
        return serving < self.slots

    def may_serve_interactive(self, serving: int) -> bool:
        return serving < self.slots + self.reserve
