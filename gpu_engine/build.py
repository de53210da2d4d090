"""From a configuration to an engine that runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from headrace.gpu_engine.api import CountingEngine
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.several import SeveralTexts
from headrace.gpu_engine.fan_out import FanOut
from headrace.gpu_engine.memory.errors import is_out_of_memory
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.weights.resolve import resolve_model
from headrace.gpu_engine.scheduling.policies import PolicyUnusable, load_policy
from headrace.gpu_engine.sim import SimEngine
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.load import load_tokenizer
from headrace.gpu_engine.text.sim import SimTokenizer
from headrace.gpu_engine.trace import TraceError


class EngineUnusable(Exception):
    """The engine cannot start; the text is a sentence for the user that says what to do."""


def _do_nothing() -> None:
    """Most engines have nothing to end, and some nothing to prepare."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine and the tokenizer that its prompts are made with. `close` ends the processes that it has
    started, after its last step; they end with this one in any case. `prepare_grammars`: what would stop all
    threads for up to a second at the first request that has one."""

    engine: CountingEngine
    tokenizer: Tokenizer
    close: Callable[[], object] = _do_nothing
    prepare_grammars: Callable[[], object] = _do_nothing


def build_engine(config: EngineConfig) -> CountingEngine:
    """The engine that `config` describes, ready to step. Raises EngineUnusable."""
    loaded = load_engine(config)
    loaded.prepare_grammars()
    return loaded.engine


def load_engine(config: EngineConfig) -> LoadedEngine:
    """As `build_engine`, for those who turn text into tokens themselves."""
    if config.engine == "sim" and config.tensor_parallel_size > 1:
        raise EngineUnusable("The simulated engine has no layers to share; leave tensor_parallel_size at 1.")
    if config.engine == "sim" and config.speculative_method != "none":
        raise EngineUnusable("The simulated engine has nothing to guess; leave speculative_method at none.")
    if config.engine == "sim":
        return LoadedEngine(_for_several(SimEngine(config)), SimTokenizer())
    try:
        load_policy(config)  # before a model is loaded in vain
        return _load_torch_engine(config)
    except (ModelError, PolicyUnusable, TraceError) as error:
        raise EngineUnusable(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise EngineUnusable(
            f"There is too little memory for the model {config.model}; free some, or use a smaller model."
        ) from error


def _load_torch_engine(config: EngineConfig) -> LoadedEngine:
    path = resolve_model(config.model)
    # Imported here, so that the simulated engine, and a model that is not there, need not wait for torch.
    from headrace.gpu_engine.embedding.settings import pooler_maker
    from headrace.gpu_engine.engine import StepEngine
    from headrace.gpu_engine.grammar_queue import GrammarQueue
    from headrace.gpu_engine.models.folder import check_config
    from headrace.gpu_engine.parallel.runner import ParallelRunner, load_parallel_runner
    from headrace.gpu_engine.runner import load_runner
    from headrace.gpu_engine.sampling.trials import TrialProcess, TriedGrammars

    check_config(path)  # first, since transformers would call a wrong config a wrong tokenizer
    tokenizer = load_tokenizer(config.model, config.engine, config.load_format, config.tool_call_format)
    is_parallel = config.tensor_parallel_size > 1
    runner = load_parallel_runner(config) if is_parallel else load_runner(config)
    engine = StepEngine(
        config,
        runner,
        tokenizer,
        model=runner.model_name,
        fingerprint=_join_fingerprints(runner.fingerprint, tokenizer.fingerprint),
        adapters={
            name: _join_fingerprints(runner.fingerprint, tokenizer.fingerprint, adapter)
            for name, adapter in runner.adapters.items()
        },
        adapter_bytes=runner.adapter_bytes,
        max_context=runner.max_context,
        vocab_size=runner.vocab_size,
        poolers=pooler_maker(config, path, runner.hidden_size),
    )
    close = runner.close if isinstance(runner, ParallelRunner) else _do_nothing
    guides = engine.guides
    if guides is None:
        return LoadedEngine(_for_several(engine), tokenizer, close)
    trial = TrialProcess(guides.vocabulary)
    queue = GrammarQueue(engine, TriedGrammars(guides, trial))

    def close_all() -> None:
        trial.close()
        close()

    def prepare() -> None:
        trial.start()
        guides.prepare()

    return LoadedEngine(_for_several(queue), tokenizer, close_all, prepare)


def _for_several(engine: CountingEngine) -> CountingEngine:
    """Requests for several answers, and for the vectors of several texts, around an engine of single ones."""
    return FanOut(SeveralTexts(engine))


def _join_fingerprints(*fingerprints: str) -> str:
    return hashlib.blake2b("/".join(fingerprints).encode(), digest_size=16).hexdigest()
