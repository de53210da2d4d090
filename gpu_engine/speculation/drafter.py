"""Who drafts for a request: a proposer, at a pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.sampling.controls import Controls
from headrace.gpu_engine.speculation.contract import Proposer
from headrace.gpu_engine.speculation.ngram import NgramProposer
from headrace.gpu_engine.speculation.pace import AdaptivePace, Pace, Steady
from headrace.gpu_engine.speculation.price import Free, MeasuredPrice, Price


@dataclass(frozen=True, slots=True)
class Drafter:
    """Drafts for one request."""

    proposer: Proposer
    pace: Pace

    def draft(self, token_ids: Sequence[int], room: int, price: float) -> list[int]:
        """At most `room` tokens, mostly fewer, that may come after `token_ids`. `price`: see `Price.of`."""
        count = min(room, self.pace.length(price))
        return self.proposer.propose(token_ids, count) if count > 0 else []


class DrafterMaker:
    """Makes what `config` asks for."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def make_price(self) -> Price:
        """One for all drafters of an engine."""
        return MeasuredPrice() if self._is_on and self._config.adaptive_speculation else Free()

    def make(self, controls: Controls | None) -> Drafter | None:
        """None where nothing is to be drafted. What shapes a row by the tokens before it would need the rows
        of a draft one after the other, so such requests are left alone."""
        if not self._is_on or (controls is not None and not controls.is_telling):
            return None
        config = self._config
        pace = AdaptivePace if config.adaptive_speculation else Steady
        return Drafter(
            NgramProposer(config.prompt_lookup_max, config.prompt_lookup_min),
            pace(config.num_speculative_tokens),
        )

    @property
    def _is_on(self) -> bool:
        return self._config.speculative_method != "none"
