"""Ranks of a model as threads of this process: the same code and the same exchange as in processes of their
own, without the seconds that those take to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.parallel.load import open_model
from headrace.gpu_engine.parallel.runner import PATIENCE, ParallelRunner, Patience, lead
from headrace.gpu_engine.parallel.worker import Pipe as Connection
from headrace.gpu_engine.parallel.worker import serve


@dataclass
class ThreadWorker:
    """Implements `Worker` over a thread, which ends when its connection does."""

    main: Callable[[Connection], int] = serve
    code: int | None = None
    killed: bool = False
    theirs: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection, self.theirs = Pipe(duplex=True)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self.theirs:
            self.code = self.main(self.theirs)

    def wait(self, patience_s: float) -> int | None:
        self.thread.join(patience_s)
        return self.code

    def kill(self) -> None:
        self.killed = True
        self.connection.close()


def lead_threads(config: EngineConfig, patience: Patience = PATIENCE) -> ParallelRunner:
    """A runner of which all ranks but the first are threads."""
    workers = [ThreadWorker() for _ in range(config.tensor_parallel_size - 1)]
    return lead(config, open_model(config), workers, patience)
