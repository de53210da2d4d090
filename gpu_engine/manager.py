"""Requests of many callers on one engine: a thread that drives it, and what it brought until it is fetched.

add_request ──► inbox ──► engine thread: add, abort, step ──► entries ──► get_result, stream
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec

from headrace.gpu_engine.api import EmbedParams, Engine, EngineError, EngineRequest, Output, SamplingParams
from headrace.gpu_engine.entries import Completion, Entry, Mark
from headrace.gpu_engine.sampling.check import MAX_ANSWERS
from headrace.gpu_engine.text.contract import TextError, Tokenizer

MAX_REQUESTS: Final = 10_000

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, object]]
"""A text, token ids, or the messages of a chat."""

_LOG: Final = logging.getLogger(__name__)


class UnknownRequest(LookupError):
    """No request has this id, or its result was fetched already."""


class TooManyRequests(Exception):
    """The manager holds as many requests as it may; fetch results before adding more."""


class RequestManager:
    """Drives an engine in a thread of its own; its methods may be called from any thread.

    A request is kept until its result was fetched or its stream read to the end, at about a hundred bytes a
    token. `add_request` refuses more than `max_requests` at once; `generate_batch` holds its whole batch.

    What is wrong with a request (a prompt that is no text, a prompt too long) is an `error` in its result,
    never an exception. When the engine fails, all unfinished requests and all later ones end with that error.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, max_requests: int = MAX_REQUESTS) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._inbox: list[EngineRequest | str] = []  # requests to add and ids to abort, in order
        self._entries: dict[str, Entry] = {}
        self._ids = count(1)
        self._stopped: EngineError | None = None
        self._thread = threading.Thread(target=self._drive, name="headrace-engine", daemon=True)
        self._thread.start()

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> str:
        """Queues a request, for one of the engine's LoRA adapters where it names one, and returns its id.
        Raises TooManyRequests."""
        return self._submit(prompt, params or SamplingParams(), self._max_requests, adapter=adapter)

    def get_result(self, request_id: str, timeout: float | None = None) -> Completion:
        """Waits for the end of a request, at most `timeout` seconds, and hands its result over: the manager
        forgets it. Raises UnknownRequest, and TimeoutError, after which the result can still be fetched."""
        with self._lock:
            entry = self._find(request_id)
            if not entry.wait_for(lambda: entry.ended, timeout):
                raise TimeoutError(f"Request {request_id} has not ended within {timeout} s.")
            self._entries.pop(request_id, None)
            return entry.completion()

    def stream(self, request_id: str) -> Iterator[Output]:
        """What a request brings as it comes, from its beginning; the last output (of each of its `n` answers)
        has `finish_reason` or `error`. Tokens that come faster than they are read are joined. The manager
        forgets a request whose stream was read to the end. Raises UnknownRequest."""
        with self._lock:
            entry = self._find(request_id)
        return self._read(entry)

    def cancel(self, request_id: str) -> None:
        """Ends a request with `abort` within the next step. Unknown and finished ids are ignored."""
        with self._lock:
            self._cancel(request_id)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[Completion]:
        """Answers to all prompts, in their order. `params` and `adapter`: for all, or one for each (else
        ValueError)."""
        count = len(prompts)
        each = params if isinstance(params, Sequence) else [params or SamplingParams()] * count
        adapters = [adapter] * count if adapter is None or isinstance(adapter, str) else adapter
        asked = zip(prompts, each, adapters, strict=True)
        return self._complete(self._submit(prompt, own, adapter=name) for prompt, own, name in asked)

    def embed(
        self, prompts: Sequence[Prompt], dimensions: int | None = None, *, adapter: str | None = None
    ) -> list[Completion]:
        """The `embedding` of each prompt, in their order; `dimensions`: only so many of its numbers;
        `adapter`: the LoRA adapter that makes them."""
        asked, params = EmbedParams(dimensions=dimensions), SamplingParams()
        return self._complete(self._submit(one, params, embed=asked, adapter=adapter) for one in prompts)

    def _complete(self, submitted: Iterable[str]) -> list[Completion]:
        """What becomes of requests, which are submitted while their ids are asked for."""
        ids: list[str] = []
        try:
            ids.extend(submitted)  # one by one: whatever comes between, those submitted are known
            return [self.get_result(request_id) for request_id in ids]
        finally:
            # After Ctrl-C nobody will fetch the rest.
            with self._lock:
                for request_id in ids:
                    self._cancel(request_id)
                    self._entries.pop(request_id, None)

    def close(self) -> None:
        """Ends what is unfinished with an error, waits for the step that runs now and ends the thread.
        Results can still be fetched; the engine is not to be used any more."""
        with self._lock:
            self._stop(EngineError(code="internal_error", message="The request manager was closed."))
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------- callers' side

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        limit: int | None = None,
        embed: EmbedParams | None = None,
        adapter: str | None = None,
    ) -> str:
        prompt_ids, error = _encode(self._tokenizer, prompt)
        error = error or _check_types(params) or _check_types(embed or EmbedParams())
        with self._lock:
            held = len(self._entries)
            if limit is not None and held >= limit:
                raise TooManyRequests(f"{held} requests are held; fetch some results before adding more.")
            entry = Entry(f"request-{next(self._ids)}", prompt_ids, _num_answers(params), self._lock)
            self._entries[entry.id] = entry
            error = self._stopped or error
            if error is not None:
                entry.fail(error)
            else:
                name = None if adapter is None else str(adapter)
                request = EngineRequest(
                    id=entry.id, prompt_ids=prompt_ids, params=params, embed=embed, adapter=name
                )
                self._inbox.append(request)
                self._work.notify()
        return entry.id

    def _find(self, request_id: str) -> Entry:
        try:
            return self._entries[request_id]
        except KeyError:
            raise UnknownRequest(f"There is no request {request_id}, or its result was fetched.") from None

    def _read(self, entry: Entry) -> Iterator[Output]:
        marks = [Mark() for _ in entry.answers]
        ended = False
        while not ended:
            with self._lock:
                entry.wait_for(lambda: entry.has_news(marks))
                news = entry.news(marks)
                ended = entry.ended
                if ended:
                    self._entries.pop(entry.id, None)
            yield from news

    def _cancel(self, request_id: str) -> None:
        entry = self._entries.get(request_id)
        if entry is not None and not entry.ended:
            self._inbox.append(request_id)
            self._work.notify()

    def _stop(self, error: EngineError) -> None:
        """With the lock held: ends every request, now and later."""
        self._stopped = self._stopped or error
        for entry in self._entries.values():
            entry.fail(self._stopped)
        self._work.notify()

    # -------------------------------------------------------------------------------------- engine's thread

    def _drive(self) -> None:
        try:
            while self._take_orders():
                self._deliver(self._engine.step() if self._engine.has_work else [])
        except BaseException as error:  # native code panics with what is no Exception
            _LOG.exception("the engine failed")
            with self._lock:
                self._stop(EngineError(code="internal_error", message=f"The engine failed: {error}"))

    def _take_orders(self) -> bool:
        """Waits for something to do; hands additions and aborts to the engine. False when it is to stop."""
        with self._lock:
            while not (self._inbox or self._stopped or self._engine.has_work):
                self._work.wait()
            orders, self._inbox = self._inbox, []
            if self._stopped:
                return False
        for order in orders:
            self._obey(order)
        return True

    def _obey(self, order: EngineRequest | str) -> None:
        if isinstance(order, str):
            self._engine.abort(order)
            return
        error = self._engine.add(order)
        if error is not None:
            with self._lock:
                if order.id in self._entries:
                    self._entries[order.id].fail(error)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        with self._lock:
            for output in outputs:
                entry = self._entries.get(output.id)
                if entry is not None:
                    entry.take(output)


def _num_answers(params: SamplingParams) -> int:
    """What an engine refuses is one answer: its error."""
    n = params.n
    return n if isinstance(n, int) and 1 <= n <= MAX_ANSWERS else 1


def _check_types(params: SamplingParams | EmbedParams) -> EngineError | None:
    """What Python lets pass: a number given as a text, or a single stop string, which is a sequence too."""
    try:
        msgspec.convert(msgspec.structs.asdict(params), type(params))
    except (msgspec.ValidationError, TypeError) as error:
        return EngineError(code="invalid_request", message=f"Wrong parameters: {error}.", param="params")
    return None


def _encode(tokenizer: Tokenizer, prompt: Prompt) -> tuple[list[int], EngineError | None]:
    """Token ids of a prompt of any kind, or why there are none."""
    try:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt), None
        if isinstance(prompt, list | tuple) and all(isinstance(item, int) for item in prompt):
            return list(prompt), None
        if isinstance(prompt, list | tuple) and all(isinstance(item, Mapping) for item in prompt):
            return tokenizer.encode_chat(prompt), None
    except TextError as error:
        return [], EngineError(code="invalid_request", message=str(error), param="prompt")
    message = "A prompt must be a text, a list of token ids or a list of chat messages."
    return [], EngineError(code="invalid_request", message=message, param="prompt")
