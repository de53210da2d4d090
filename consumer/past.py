"""What earlier owners of a request left in its log, and what this one may make of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.broker.events import Handed
from headrace.broker.fold import Fold


@dataclass(frozen=True, slots=True)
class Past:
    """`log`: as it was at the open, empty before. `body_hash`: of the body that is served now."""

    log: Fold
    body_hash: bytes

    @property
    def has_begun(self) -> bool:
        """Whether somebody began it."""
        return self.log.started is not None

    @property
    def was_read(self) -> bool:
        """Whether an owner got through its body."""
        return self.log.started is not None and bool(self.log.started.fingerprint)

    @property
    def moved(self) -> bool:
        """Whether it was passed on before."""
        return self.log.moved is not None

    @property
    def put_off(self) -> Handed | None:
        """By whoever had it last, if nobody began it since."""
        return self.log.put_off

    @property
    def last_seed(self) -> int | None:
        """The seed that the last owner used, if there was one."""
        return self.log.started.seed if self.log.started else None

    def resumable(self, fingerprints: Collection[str]) -> bool:
        """Whether the tokens in the log may be continued by who makes tokens of these fingerprints: it is the
        same body, and one of these models."""
        last = self.log.started
        return last is not None and last.fingerprint in fingerprints and last.body_hash == self.body_hash

    def may_have_killed(self, epoch: int, *, redelivered: bool) -> bool:
        """Whether the owner before `epoch` died of it, maybe: it had it, and did not hand it on."""
        last = self.log.put_off
        in_order = last is not None and last.epoch >= epoch - 1
        was_had = redelivered and epoch > 1 and not in_order
        return was_had or (self.log.deaths.all > 0 and not self.was_read)
