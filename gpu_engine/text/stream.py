"""The text of one answer as it may be shown: detokenised, cut at stop strings, never taken back."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.gpu_engine.text.detokenize import Decoder, IncrementalDetokenizer
from headrace.gpu_engine.text.stop import StopMatcher


class TextStream:
    """Feeds tokens, yields text. `stop`: strings that end the text before them; matched in the output only.

    All pieces joined, with `flush()` last, are the same however the tokens were grouped, so an answer that
    resumes elsewhere is replayed through `feed` without showing it and goes on seamlessly.
    """

    __slots__ = ("_detokenizer", "_matcher")

    def __init__(self, tokenizer: Decoder, prompt_ids: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        """A stop string was completed; the text ends before it, and what is fed later shows nothing."""
        return self._matcher.stopped

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that may be shown now; may be empty."""
        return "" if self.stopped else self._matcher.feed(self._detokenizer.feed(token_ids))

    def flush(self) -> str:
        """What was held back, when the answer ends by its end token, its length or an abort; ends the stream.

        An unfinished character comes out as U+FFFD. After a stop string there is nothing to flush.
        """
        if self.stopped:
            return ""
        return self._matcher.feed(self._detokenizer.flush()) + self._matcher.flush()
