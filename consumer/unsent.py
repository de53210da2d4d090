"""What a log lacks of a request's answers: what arrives meanwhile coalesces into one delta of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.events import Delta, TokenLogprobs


@dataclass(slots=True)
class _Part:
    """Of one answer."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def delta(self, epoch: int, seq: int, choice: int) -> Delta:
        return Delta(
            epoch,
            seq,
            tuple(self.token_ids),
            "".join(self.pieces),
            choice,
            tuple(self.logprobs),
            tuple(self.prompt_logprobs),
        )


class Unsent:
    """By the answers' numbers."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(len(part.token_ids) for part in self._parts.values())

    def add(
        self,
        choice: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Sequence[TokenLogprobs],
        prompt_logprobs: Sequence[TokenLogprobs],
    ) -> None:
        """Goes behind what there is of this answer."""
        part = self._parts.setdefault(choice, _Part())
        part.token_ids.extend(token_ids)
        part.pieces.append(text)
        part.logprobs.extend(logprobs)
        part.prompt_logprobs.extend(prompt_logprobs)

    def put_back(self, delta: Delta) -> None:
        """It was taken and did not get into the log: it goes before what there is of its answer."""
        part = self._parts.setdefault(delta.choice, _Part())
        part.token_ids[:0] = delta.token_ids
        part.pieces.insert(0, delta.text)
        part.logprobs[:0] = delta.logprobs
        part.prompt_logprobs[:0] = delta.prompt_logprobs

    def take(self, epoch: int, first_seq: int) -> list[Delta]:
        """All of it, one delta of each answer, numbered from `first_seq` on."""
        parts = enumerate(sorted(self._parts.items()), start=first_seq)
        deltas = [part.delta(epoch, seq, choice) for seq, (choice, part) in parts]
        self._parts = {}
        return deltas
