"""What ranks exchange while they compute, over `torch.distributed`.

Sums are made in the order of the ranks on every one of them: each sends what it has to all others, and all
add the same numbers in the same order. So ranks agree on each bit, and what a row gets does not depend on who
else is in the step, which a ring's all-reduce does not promise for more than two. (For two ranks it moves the
same bytes, for more up to size / 2 times as many.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
from torch._C._distributed_c10d import FileStore, Store
from torch.distributed import GatherOptions, ProcessGroup, Work
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.gpu_engine.models.errors import one_line

LOOPBACK: Final = "127.0.0.1"
"""Ranks of one machine need no other interface, and nobody else should reach theirs."""


class PeersLost(Exception):
    """Another rank is gone or does not answer: nothing more can be exchanged."""


class RankGroup(Protocol):
    """The ranks of one model. Each call waits for the same call on all others, and may raise PeersLost."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def sums(self) -> int:
        """How many sums this rank has taken part in."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `x`, which have the same shape, in x's dtype; the same bits on each."""

    def hand_out(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's `x`, written into the others' of the same shape."""

    def collect(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """All ranks' `x`, of the same shape, in their order on rank 0; nothing on the others."""


class TorchGroup:
    """Implements `RankGroup`. No exchange may take longer than `patience_s`."""

    def __init__(self, group: ProcessGroup, patience_s: float) -> None:
        self._group = group
        self._patience = timedelta(seconds=patience_s)
        self._to_first = GatherOptions()
        self._to_first.rootRank = 0
        self.sums = 0

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def size(self) -> int:
        return self._group.size()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._make_room(x)
        self._wait(self._group.allgather([parts], [x.contiguous()]))
        self.sums += 1
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def hand_out(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        self._wait(self._group.broadcast([x]))
        return x

    def collect(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = self._make_room(x) if self.rank == 0 else []
        self._wait(self._group.gather([parts] if parts else [], [x.contiguous()], self._to_first))
        return parts

    def _make_room(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(x.new_empty((self.size, *x.shape)).unbind())

    def _wait(self, work: Work) -> None:
        try:
            work.wait(self._patience)
        except RuntimeError as error:
            raise PeersLost(one_line(error)) from error


def connect(
    device: str, meeting_place: str, rank: int, size: int, *, patience_s: float, connect_s: float
) -> TorchGroup:
    """Meets the other ranks by a file all can see, `meeting_place`, within `connect_s` seconds. `device`
    decides what carries the tensors: gloo those of a processor. Raises PeersLost."""
    store = FileStore(meeting_place, size)
    group = ProcessGroup(store, rank, size)
    kind, open_backend = _BACKENDS[device]
    try:
        backend = open_backend(store, rank, size, connect_s)
    except RuntimeError as error:
        raise PeersLost(one_line(error)) from error
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    return TorchGroup(group, patience_s)


def _open_gloo(store: Store, rank: int, size: int, connect_s: float) -> Any:
    gloo: Any = ProcessGroupGloo  # whose options are not typed
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=connect_s)
    return gloo(store, rank, size, options)


_BACKENDS: Final[dict[str, tuple[Any, Callable[[Store, int, int, float], Any]]]] = {
    "cpu": (ProcessGroup.BackendType.GLOO, _open_gloo),
}
"""By device. NCCL, for `cuda`, takes its place here."""
