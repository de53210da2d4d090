"""Batching policies: when requests that have come may stand in the line for the running batch.

    continuous   at once: a request joins as soon as another has ended (Yu et al. 2022, "Orca")
    dynamic      a batch starts when it is full, when enough tokens wait, or when the first has waited long
                 enough, whichever comes first; then it runs to its end
    static       a batch is whoever is there when the last one has ended; it runs to its end

All on the same kernels and in the same step. A policy of one's own is a class with a constructor that takes
the EngineConfig and the one method of `BatchingPolicy`; an installed package names it in the entry point
group `headrace.batching_policies`, and `batching_policy` chooses it by that name, or as `module:Class`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast

from headrace.gpu_engine.config import EngineConfig

GROUP: Final = "headrace.batching_policies"


class PolicyUnusable(Exception):
    """The batching policy cannot be had; the text is a sentence for the user that says what to do."""


class BatchState(NamedTuple):
    """What a policy decides by. `num_running` run; `num_in_line` were let in and wait for a slot or for
    memory, those that were preempted among them; `num_gathered`, with `gathered_tokens` of prompt, ask to be
    let in, the oldest of them for `oldest_wait_ms`. `max_batch_size`: how many may run."""

    num_running: int
    num_in_line: int
    num_gathered: int
    gathered_tokens: int
    oldest_wait_ms: float
    max_batch_size: int

    @property
    def num_active(self) -> int:
        """Requests that were let in and have not ended."""
        return self.num_running + self.num_in_line


class BatchingPolicy(Protocol):
    """Decides how many of the gathered requests may enter the line."""

    def let_in(self, state: BatchState) -> int:
        """How many may enter now, at most; asked at the start of each step while any are gathered. While
        nothing is active it must come to let one in within a bounded time, or the engine waits for ever."""


class Continuous:
    """Everybody, at once."""

    def __init__(self, config: EngineConfig) -> None:
        pass

    def let_in(self, state: BatchState) -> int:
        return state.num_gathered


class Dynamic:
    """A batch of up to `max_batch_size`, begun at that many requests, at `max_waiting_tokens`, or after
    `max_wait_ms`."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_tokens = config.max_waiting_tokens
        self._max_wait_ms = config.max_wait_ms

    def let_in(self, state: BatchState) -> int:
        is_ripe = (
            state.num_gathered >= state.max_batch_size
            or state.gathered_tokens >= self._max_tokens
            or state.oldest_wait_ms >= self._max_wait_ms
        )
        return state.max_batch_size if is_ripe and not state.num_active else 0


class Static:
    """A batch of up to `max_batch_size`, whoever is there; the next when all of it have ended."""

    def __init__(self, config: EngineConfig) -> None:
        pass

    def let_in(self, state: BatchState) -> int:
        return 0 if state.num_active else state.max_batch_size


PolicyFactory = Callable[[EngineConfig], BatchingPolicy]

BUILT_IN: Final[Mapping[str, PolicyFactory]] = MappingProxyType(
    {"continuous": Continuous, "dynamic": Dynamic, "static": Static}
)
"""Known without asking what is installed, which takes a moment."""


def load_policy(config: EngineConfig) -> BatchingPolicy:
    """The policy that `config.batching_policy` names. Raises PolicyUnusable."""
    name = config.batching_policy
    return (BUILT_IN.get(name) or _find(name))(config)


def _find(name: str) -> PolicyFactory:
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    entry = installed.get(name)
    if entry is None and ":" not in name:
        known = ", ".join(sorted({*BUILT_IN, *installed}))
        raise PolicyUnusable(
            f"There is no batching policy '{name}'; there are {known}, and 'module:Class' names your own."
        )
    return _import(entry or EntryPoint(name, name, GROUP))


def _import(entry: EntryPoint) -> PolicyFactory:
    module, _, attribute = entry.value.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PolicyUnusable(
            f"The batching policy '{entry.name}' cannot be imported ({error}); check its name and that its "
            "package is installed."
        ) from error
    return cast(PolicyFactory, found)
