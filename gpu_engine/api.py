"""What goes into an engine and what comes out: the typed messages of its public face.

They are msgspec structs because the same objects travel between a consumer and its engine process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol, TypeAlias

import msgspec


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must look like. `source` is a JSON schema (as JSON), a regular expression (Rust's
    syntax, matched against the whole answer) or a Lark grammar (llguidance's dialect) that begins with
    `start`; `choices`, for `choice`, are the only answers there are.

    Refusals call it `param`. `parts`: JSON schemas within `source`, each with its name and in itself
    complete; a refusal names the one that is at fault."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    source: str = ""
    choices: tuple[str, ...] = ()
    param: str = "grammar"
    parts: tuple[tuple[str, str], ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token, and when to stop.

    `temperature` 0 is greedy. Filters apply in the order temperature, top_k, min_p, top_p, as in vLLM;
    `top_k` 0, `top_p` 1 and `min_p` 0 switch them off. The noise depends on (`seed`, position) alone; seed
    None: the engine draws one, so that two requests that are equal have answers that differ.
    `max_tokens` counts generated tokens; None: up to `max_total_tokens`. `stop` strings end the text
    before them. `ignore_eos` ignores the model's end token, not `stop`.

    `stop_token_ids` end the answer as the model's end token does. `min_tokens`: neither comes before that
    many tokens, and `stop` is looked for only in the text behind them. `include_stop_str_in_output` shows the
    stop string, or the text of the token that ended the answer. `skip_special_tokens` off: special tokens
    show in the text.

    `presence_penalty` and `frequency_penalty` count the output, `repetition_penalty` the prompt too.
    `logit_bias`: number to add, by token id. `bad_words` never appear (each is tokenised as it stands, and
    behind a space). In which order all this applies: `sampling.controls`.

    `logprobs`: tell the log probability of each token, and this many of the likeliest in its place;
    `prompt_logprobs`: likewise of the prompt, which is then computed anew, whatever the prefix cache holds.
    Both are the model's own: before temperature, penalties and filters. `echo` begins the text with the
    prompt's. `grammar`: the answer follows it, if it is not cut short by `max_tokens`.

    `n` answers to one prompt, each with its own noise, drawn from `seed`; of `best_of` (if that is more)
    those with the highest mean log probability.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    grammar: Grammar | None = None
    n: int = 1
    best_of: int | None = None

    def end_at(self, token: int, eos_ids: Collection[int]) -> bool:
        """Whether `token` ends an answer, of a model whose end tokens are `eos_ids`."""
        return (token in eos_ids and not self.ignore_eos) or token in self.stop_token_ids


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log of a token's probability, and (id, log probability) of the likeliest ones, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class EmbedParams(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the prompt's vector in the place of an answer. `dimensions`: only that many of its first
    numbers (None: all). `others`: further prompts, each with a vector of its own; outputs number them from 1.
    """

    dimensions: int | None = None
    others: list[list[int]] = []


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `output_ids` holds the tokens of an interrupted answer: they are prefilled, replayed
    through the text stage without being emitted again, and count against `max_tokens`. `adapter`: one of
    the engine's LoRA adapters, by its name; None: the bare model. `priority`: lower is served first, and in
    its place where need be (0 interactive … 3 background); `deadline_ms` orders those of one priority,
    earliest first, and ends nothing: any clock will do, if it is the same for all. `embed`: nothing is
    generated, the request ends (`stop`) with a vector. Of `n` answers `output_ids` are the first one's, and
    `other_outputs` those of all others, or of none. `prompt_of`: a request with the same prompt, whose keys
    and values may be shared while it runs."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams = SamplingParams()
    output_ids: list[int] = []
    adapter: str | None = None
    priority: int = 1
    deadline_ms: int | None = None
    other_outputs: list[list[int]] = []
    embed: EmbedParams | None = None
    prompt_of: str | None = None


class EngineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed. `code` as in the OpenAI API (`context_length_exceeded`, `invalid_request`,
    `internal_error`); `param` names the offending parameter."""

    code: str
    message: str
    param: str = ""


def id_in_use(request_id: str) -> EngineError:
    """Why a request is refused whose id an unfinished one has."""
    message = f"Request {request_id} is in the engine already; wait for its last output."
    return EngineError(code="invalid_request", message=message, param="id")


class Output(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step brought for one request.

    `token_ids` are all new ids, `text` what may be shown of them (text that could still become a stop
    string, or half a character, is held back). `finish_reason`: `stop`, `length` or `abort`; set, or
    `error` set, in exactly one output per request, the last. `cached_tokens`: prompt tokens that were known
    when it began, from the prefix cache or another answer; valid in every output. `logprobs`: one for each of
    `token_ids`, where asked for; `prompt_logprobs`: of all prompt tokens but the first, in the first output
    with a token. `index`: which of the `n` answers this belongs to; each has its last output. `embedding`:
    the vector of an embedded text, in its last output.
    """

    id: str
    token_ids: list[int] = []
    text: str = ""
    finish_reason: str | None = None
    error: EngineError | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    index: int = 0
    embedding: list[float] = []

    @property
    def is_last(self) -> bool:
        """Of this answer."""
        return self.finish_reason is not None or self.error is not None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine serves and how much it can hold. `fingerprint` names model and tokenizer: tokens
    made under one fingerprint may be continued only under the same. `adapters`: LoRA adapters by name, each
    with the fingerprint of tokens made with it; they take `adapter_bytes`. `kv_tokens`: slots of
    KV memory. `embedding_size`: numbers of a vector; 0: there are none."""

    model: str
    fingerprint: str
    max_batch_size: int
    max_input_length: int
    max_total_tokens: int
    kv_tokens: int
    adapters: dict[str, str] = {}
    adapter_bytes: int = 0
    embedding_size: int = 0

    def fingerprint_with(self, adapter: str | None) -> str:
        """That of tokens made with `adapter`, one of those that there are, or with the bare model."""
        return self.fingerprint if adapter is None else self.adapters[adapter]

    @property
    def fingerprints(self) -> set[str]:
        """Of all tokens that it makes."""
        return {self.fingerprint, *self.adapters.values()}


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine holds at one moment, and what it has done since it started.

    `used_blocks` and `free_blocks` are of the KV memory, cached content that nobody uses being free;
    `host_blocks` are swapped out. Of `query_tokens` that came the prefix cache had `hit_tokens`; it lost
    `cache_evictions` blocks. Of `preemptions`, `swaps_out` went to the host, and `swaps_in` came back.
    `step_budget`: tokens that a step may have now; memory ran out, and that shrank, `budget_shrinks` times.
    Of `draft_tokens` that were guessed and verified, `accepted_tokens` were right.
    """

    running: int
    waiting: int
    used_blocks: int = 0
    free_blocks: int = 0
    host_blocks: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    cache_evictions: int = 0
    preemptions: int = 0
    swaps_out: int = 0
    swaps_in: int = 0
    step_budget: int = 0
    budget_shrinks: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


class EngineLost(Exception):
    """An engine cannot go on for a reason outside of it; the text is a sentence."""


class Engine(Protocol):
    """A continuous-batching engine, driven by its owner one step at a time; not thread-safe."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def has_work(self) -> bool: ...

    def add(self, request: EngineRequest) -> EngineError | None:
        """Queues a request; a request that can never be served is refused with the numbers, and a
        duplicate of an unfinished id is refused too. A refused request gets no output."""

    def abort(self, request_id: str) -> None:
        """Frees the request within the next step, whose outputs hold its `abort`. Unknown or finished
        ids are ignored."""

    def step(self) -> list[Output]:
        """Schedules, computes and applies one step. Errors of a request are outputs, never exceptions."""


class CountingEngine(Engine, Protocol):
    """An engine that also says how many of its requests run and wait, for metrics and watchdog."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def stats(self) -> EngineStats: ...


# ------------------------------------------------------------- between a consumer and its engine process


class Add(msgspec.Struct, frozen=True, tag=True):
    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    id: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Ends the process after the step that runs now; unfinished requests get no output."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; sent once."""

    info: EngineInfo


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start (no such model, too little memory): a sentence for the user."""

    message: str


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """Sent after every step, and every second while idle: progress, for the watchdog."""

    step: int
    outputs: list[Output]
    running: int = 0
    waiting: int = 0


ToEngine: TypeAlias = Add | Abort | Shutdown
FromEngine: TypeAlias = Ready | Unusable | Stepped
