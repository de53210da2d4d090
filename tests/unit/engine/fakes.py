"""A model without arithmetic: its next token is a hash of the whole context, as read back from KV memory.

Whatever goes wrong with a block, a table or a position changes the context, and so the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tokenizers import AddedToken, Tokenizer, decoders, models

from headrace.gpu_engine.api import EngineRequest, Output, SamplingParams, TokenLogprobs
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.scheduling.forecast import OutputEstimate
from headrace.gpu_engine.scheduling.scheduler import PreemptHook
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan, StepResult
from headrace.gpu_engine.speculation.acceptance import accept
from headrace.gpu_engine.text.tools.formats import CallFormat

VOCAB = 32
EOS = 31
NAN = -1


def next_token(context: Sequence[int], seed: int | None) -> int:
    """The fake model: the token after `context`."""
    return hash((seed, *context)) % VOCAB


Model: TypeAlias = Callable[[Sequence[int], int | None], int]
"""From a context and a seed to the next token."""


def repeating_token(context: Sequence[int], seed: int | None) -> int:
    """A model that mostly says again what it said seven tokens ago, so that drafts are worth something."""
    drawn = hash((seed, *context))
    return drawn // 6 % VOCAB if drawn % 6 == 0 or len(context) < 7 else context[-7]


def expected_tokens(request: EngineRequest, max_total_tokens: int, model: Model = next_token) -> list[int]:
    """All output of `request` by a plain loop, one request at a time, nothing cached."""
    context = [*request.prompt_ids, *request.output_ids]
    params = request.params
    limit = min(params.max_tokens or max_total_tokens, max_total_tokens - len(request.prompt_ids))
    output = list(request.output_ids)
    while len(output) < limit and (params.ignore_eos or output[-1:] != [EOS]):
        output.append(model(context, params.seed))
        context.append(output[-1])
    return output


Slots: TypeAlias = dict[tuple[int, int], tuple[int, int]]
"""By (block, place): the position and the token whose KV stands there."""


class HashRunner:
    """A `Runner` whose KV memory holds (position, token) by slot.

    `nan_for`: ids whose computation yields no finite numbers. `plans` are the steps so far.
    """

    model: Model = staticmethod(next_token)

    def __init__(
        self, num_blocks: int, block_size: int, nan_for: Iterable[str] = (), num_host_slots: int = 0
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_host_slots = num_host_slots
        self.block_copy_s = 0.0
        self.nan_for = set(nan_for)
        self.plans: list[StepPlan] = []
        self._slots: Slots = {}
        self._host: Slots = {}

    def launch(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._move(plan)
        for chunk in plan.chunks:
            self._store(chunk)
        sampled: dict[str, list[int]] = {}
        failed: dict[str, str] = {}
        for chunk in plan.chunks:
            if chunk.samples:
                context = self._context(chunk)
                if NAN in context:
                    failed[chunk.request_id] = "The logits are not finite."
                else:
                    rows = range(chunk.position, len(context) + 1)
                    tokens = [self.model(context[:end], chunk.params.seed) for end in rows]
                    sampled[chunk.request_id] = accept(chunk.draft, tokens)
        return StepResult(plan.step, sampled, failed)

    def _move(self, plan: StepPlan) -> None:
        for block, slot in plan.copies_out:
            assert slot < self.num_host_slots
            self._host |= self._content(self._slots, block, slot)
        copied = [self._content(self._slots, source, block) for source, block in plan.copies]
        for content in copied:
            self._slots |= content
        for slot, block in plan.copies_in:
            self._slots |= self._content(self._host, slot, block)

    def _content(self, memory: Slots, source: int, target: int) -> Slots:
        """What `source` holds, as content of `target`; of what it does not hold, a mark."""
        places = range(self.block_size)
        return {(target, place): memory.get((source, place), (NAN, NAN)) for place in places}

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        block = chunk.block_table[position // self.block_size]
        assert 0 < block < self.num_blocks, f"block {block} is not to be used"
        return block, position % self.block_size

    def _store(self, chunk: Chunk) -> None:
        for position, token in enumerate(chunk.token_ids, start=chunk.start):
            stored = NAN if chunk.request_id in self.nan_for else token
            self._slots[self._slot(chunk, position)] = (position, stored)

    def _context(self, chunk: Chunk) -> list[int]:
        end = chunk.start + len(chunk.token_ids)
        assert len(chunk.block_table) == -(-end // self.block_size), "the block table does not fit the chunk"
        stored = [self._slots[self._slot(chunk, position)] for position in range(end)]
        assert [position for position, _ in stored] == list(range(end)), "KV of other positions"
        return [token for _, token in stored]


class RepeatingRunner(HashRunner):
    model: Model = staticmethod(repeating_token)


class LetterTokenizer:
    """One letter a token, the end token too: that it shows nothing is not the tokenizer's merit here."""

    fingerprint = "letters"
    eos_ids = frozenset({EOS})
    vocab_size = VOCAB
    pieces: dict[int, str] | None = None
    call_format: CallFormat | None = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def encode_piece(self, text: str) -> list[int]:
        return self.encode(text.strip())

    def to_json(self) -> str | None:
        letters = {chr(ord("a") + token): token for token in range(EOS)} | {"<end>": EOS}
        backend = Tokenizer(models.BPE(vocab=letters, merges=[]))
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken("<end>", special=True)])
        return str(backend.to_str())

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)

    @property
    def verbatim(self) -> LetterTokenizer:
        return self


@dataclass(slots=True)
class Answer:
    """All outputs of one request, joined."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: Output | None = None

    def read(self, output: Output) -> None:
        assert self.last is None, f"{output.id} has an output after its last one"
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        if output.finish_reason is not None or output.error is not None:
            self.last = output


class Bench:
    """An engine over a `HashRunner`, with its invariants checked after every step. `config`: further fields
    of its EngineConfig."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_batch_size: int = 8,
        max_batch_tokens: int = 16,
        max_total_tokens: int | None = None,
        max_input_length: int | None = None,
        prefix_caching: bool = True,
        watermark: float = 0.0,
        expected_output: float = 128,
        preempt_hook: PreemptHook | None = None,
        nan_for: Iterable[str] = (),
        runner: type[HashRunner] | None = None,
        num_host_slots: int = 0,
        clock: Callable[[], float] = time.monotonic,
        **config: Any,
    ) -> None:
        self.runner = (runner or HashRunner)(num_blocks, block_size, nan_for, num_host_slots)
        settings = EngineConfig(
            max_batch_size=max_batch_size,
            max_batch_tokens=max_batch_tokens,
            max_total_tokens=max_total_tokens,
            max_input_length=max_input_length,
            enable_prefix_caching=prefix_caching,
            watermark=watermark,
            **config,
        )
        self.engine = StepEngine(
            settings,
            self.runner,
            LetterTokenizer(),
            model="hash",
            fingerprint="hash",
            max_context=1 << 20,
            vocab_size=VOCAB,
            estimate=OutputEstimate(expected_output),
            preempt_hook=preempt_hook,
            clock=clock,
        )
        self.answers: dict[str, Answer] = {}

    def add(self, request: EngineRequest) -> None:
        """Adds a request that must be accepted."""
        error = self.engine.add(request)
        assert error is None, error.message
        self.answers[request.id] = Answer()

    def step(self) -> list[Output]:
        outputs = self.engine.step()
        self.engine.check_invariants()
        for output in outputs:
            self.answers[output.id].read(output)
        return outputs

    def run(
        self,
        max_steps: int = 2_000,
        after_step: Callable[[int], None] | None = None,
        *,
        must_end: bool = True,
    ) -> dict[str, Answer]:
        """Steps until nothing is left to do."""
        for number in range(max_steps):
            if not self.engine.has_work:
                return self.answers
            self.step()
            if after_step is not None:
                after_step(number)
        assert not (must_end and self.engine.has_work), f"unfinished after {max_steps} steps"
        return self.answers


def request(
    name: str,
    prompt: Sequence[int] | int,
    max_tokens: int | None = 8,
    *,
    output_ids: Sequence[int] = (),
    priority: int = 1,
    deadline_ms: int | None = None,
    ignore_eos: bool = True,
    seed: int = 0,
    stop: Sequence[str] = (),
) -> EngineRequest:
    """A request; a prompt given as a number is of that length and of this name's own tokens."""
    if isinstance(prompt, int):
        prompt = [hash((place, *name.encode())) % (VOCAB - 1) for place in range(prompt)]
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, seed=seed, stop=tuple(stop))
    return EngineRequest(
        id=name,
        prompt_ids=list(prompt),
        params=params,
        output_ids=list(output_ids),
        priority=priority,
        deadline_ms=deadline_ms,
    )
