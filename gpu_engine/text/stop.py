"""Stop strings in a stream of text, whatever the pieces it comes in."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on until a stop string is complete; shows nothing of that string, or, with `include`, all.

    Text that could still become a stop string is held back: the longest end of the text that begins any of
    them. The match that *ends* first wins, and of those that end together the longest; so the outcome does
    not depend on how the text was cut. Each stop string has its automaton (Knuth, Morris, Pratt 1977): the
    cost is O(1) amortised per character and stop string.
    """

    __slots__ = ("_automata", "_held", "_include", "_stopped")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._include = include
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """A stop string was completed; nothing comes after it."""
        return self._stopped

    def feed(self, text: str) -> str:
        """The part of the text so far that may be shown now."""
        if self._stopped or not self._automata:
            return "" if self._stopped else text
        seen = self._held + text
        for index in range(len(self._held), len(seen)):
            matched = self._advance(seen[index])
            if matched:
                self._stopped, self._held = True, ""
                return seen[: index + 1 if self._include else index + 1 - matched]
        shown = len(seen) - max(automaton.matched for automaton in self._automata)
        self._held = seen[shown:]
        return seen[:shown]

    def flush(self) -> str:
        """What was held back, when the answer ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Length of the longest stop string that ends with `character`; 0 where none does."""
        longest = 0
        for automaton in self._automata:
            if automaton.advance(character):
                longest = max(longest, automaton.matched)
        return longest


class _Automaton:
    """How many characters of one stop string the text ends with."""

    __slots__ = ("_fallback", "_stop", "matched")

    def __init__(self, stop: str) -> None:
        assert stop, "an empty stop string is refused when the request is added"
        self._stop = stop
        self._fallback = _fallback_lengths(stop)
        self.matched = 0

    def advance(self, character: str) -> bool:
        """True when the stop string is complete with this character; no advance may follow then."""
        while self.matched and self._stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self._stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self._stop)


def _fallback_lengths(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is also its suffix."""
    lengths = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = lengths[matched - 1]
        if stop[matched] == stop[index]:
            matched += 1
        lengths[index] = matched
    return lengths
