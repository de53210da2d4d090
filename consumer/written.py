"""What a log holds of a request's answers, as far as the outbox must know it."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.events import Delta
from headrace.broker.fold import Fold


class Written:
    """Tokens and characters, by the answers' numbers."""

    __slots__ = ("_characters", "_tokens")

    def __init__(
        self, tokens: Mapping[int, list[int]] | None = None, characters: Mapping[int, int] | None = None
    ) -> None:
        self._tokens = {number: list(ids) for number, ids in (tokens or {}).items()}
        self._characters = dict(characters or {})

    @classmethod
    def of(cls, state: Fold) -> Written:
        answers = state.answers
        return cls(
            {number: answer.token_ids for number, answer in answers.items()},
            {number: len(answer.text) for number, answer in answers.items()},
        )

    def copy(self) -> Written:
        return Written(self._tokens, self._characters)

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self._tokens.values()))

    def characters(self, choice: int) -> int:
        """The length of an answer's text."""
        return self._characters.get(choice, 0)

    def add(self, delta: Delta) -> None:
        """It stands in the log now."""
        self._tokens.setdefault(delta.choice, []).extend(delta.token_ids)
        self._characters[delta.choice] = self.characters(delta.choice) + len(delta.text)

    def has_same_tokens(self, other: Written) -> bool:
        """Whether both hold the same tokens; an answer without any is none."""
        return self._begun() == other._begun()

    def _begun(self) -> dict[int, list[int]]:
        return {number: ids for number, ids in self._tokens.items() if ids}
