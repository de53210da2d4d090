"""The public offline interface: a model, prompts in, answers out.

with LLM("path/to/model") as llm:
    for completion in llm.generate_batch(["Once upon a time", [{"role": "user", "content": "Hello"}]]):
        print(completion.text)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from headrace.gpu_engine.api import EngineInfo, EngineStats, Grammar, SamplingParams
from headrace.gpu_engine.build import EngineUnusable, load_engine
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.entries import Completion
from headrace.gpu_engine.manager import Prompt, RequestManager, TooManyRequests, UnknownRequest

__all__ = [
    "LLM",
    "Completion",
    "EngineUnusable",
    "Grammar",
    "Prompt",
    "RequestManager",
    "SamplingParams",
    "TooManyRequests",
    "UnknownRequest",
]


class LLM:
    """A model in this process. `config`: further fields of `EngineConfig`, such as `max_batch_size=32`.

    Raises EngineUnusable with a sentence where there is no such model or it cannot run here, and pydantic's
    ValidationError for settings that do not exist. Its methods may be called from any thread.
    """

    def __init__(self, model: str = "", **config: Any) -> None:
        loaded = load_engine(EngineConfig(model=model, **config))
        self._engine = loaded.engine
        self._manager = RequestManager(loaded.engine, loaded.tokenizer)
        self._close_engine = loaded.close

    @property
    def info(self) -> EngineInfo:
        """What is served, and its limits."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """What the engine holds now, and has done: KV blocks, prefix cache hits, preemptions."""
        return self._engine.stats

    @property
    def manager(self) -> RequestManager:
        """For requests one at a time: `add_request`, `get_result`, `stream`, `cancel`."""
        return self._manager

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[Completion]:
        """Answers to all prompts, in their order.

        A prompt is a text, a list of token ids, or a list of chat messages; kinds may be mixed. `params`
        holds for all, or is one for each; the default samples at temperature 1 until the model ends its
        answer. A prompt that fails is a Completion with `error`, never an exception. Where `params` ask for
        `n` answers, the first one's Completion holds the `others`. `adapter`: a name of `lora_modules` for
        all prompts, or one for each; None is the bare model.
        """
        return self._manager.generate_batch(prompts, params, adapter=adapter)

    def embed(
        self, prompts: Sequence[Prompt], dimensions: int | None = None, *, adapter: str | None = None
    ) -> list[Completion]:
        """The vectors of all prompts, in their order: each Completion has an `embedding`, or an `error`.

        How hidden states become a vector the model's folder says, or `pooling` and `normalize` of the config.
        `dimensions`: only so many of its first numbers, at unit length again. `adapter`: a name of
        `lora_modules`.
        """
        return self._manager.embed(prompts, dimensions, adapter=adapter)

    def close(self) -> None:
        """Ends what is unfinished, the engine's thread, and the processes that it has started."""
        self._manager.close()
        self._close_engine()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
