"""The text of one answer as it may be shown: detokenised, cut at stop strings, never taken back."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.detokenize import Decoder, IncrementalDetokenizer
from headrace.gpu_engine.text.stop import StopMatcher


class TextStream:
    """Feeds tokens, yields text. `stop`: strings that end the text before them, or behind them with
    `include_stop`; matched in the output only, in what follows its first `min_tokens` tokens. `heading` is
    shown before the first piece.

    All pieces joined, with `flush()` last, are the same however the tokens were grouped, so an answer that
    resumes elsewhere is replayed through `feed` without showing it and goes on seamlessly.

    `stopped`: a stop string was completed; the text ends there, and what is fed later shows nothing.
    """

    __slots__ = (
        "_detokenizer",
        "_heading",
        "_include_stop",
        "_is_plain",
        "_matcher",
        "_unmatched",
        "stopped",
    )

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_ids: Sequence[int],
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        heading: str = "",
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
        self._matcher = StopMatcher(stop, include=include_stop)
        self._unmatched = min_tokens
        self._heading = heading
        self._include_stop = include_stop
        self._is_plain = not (stop or heading)
        self.stopped = False

    def feed(self, token_ids: Sequence[int], *, ended: bool = False) -> str:
        """Text that may be shown now; may be empty. `ended`: the last of these tokens ended the answer, and
        is no text of it, unless `include_stop` says so."""
        if self._is_plain and not ended:  # nearly always
            return self._detokenizer.feed(token_ids)
        if self.stopped:
            return ""
        token_ids = token_ids[:-1] if ended and not self._include_stop else token_ids
        heading, self._heading = self._heading, ""
        if self._unmatched:
            early = min(self._unmatched, len(token_ids))
            self._unmatched -= early
            heading += self._detokenizer.feed(token_ids[:early])
            token_ids = token_ids[early:]
        shown = self._matcher.feed(self._detokenizer.feed(token_ids))
        self.stopped = self._matcher.stopped
        return heading + shown

    def flush(self) -> str:
        """What was held back, when the answer ends by its end token, its length or an abort; ends the stream.

        An unfinished character comes out as U+FFFD. After a stop string there is nothing to flush.
        """
        if self.stopped:
            return ""
        heading, self._heading = self._heading, ""
        shown = self._matcher.feed(self._detokenizer.flush())
        self.stopped = self._matcher.stopped
        return heading + shown + self._matcher.flush()


def open_text(tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams) -> TextStream:
    """The text of an answer to `prompt_ids` under `params`."""
    decoder = tokenizer if params.skip_special_tokens else tokenizer.verbatim
    return TextStream(
        decoder,
        prompt_ids,
        params.stop,
        include_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        heading=decoder.decode(prompt_ids) if params.echo else "",
    )
