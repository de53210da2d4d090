"""The smallest loop that drives a runner, so that it is tested without the scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.scheduling.step import Chunk, Runner, StepPlan

GREEDY = SamplingParams(temperature=0)


class Sequences:
    """Requests that run side by side in blocks drawn at random, each advancing by chunks of random size."""

    def __init__(self, runner: Runner, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.runner = runner
        self.known = [list(prompt) for prompt in prompts]
        self.targets = [len(prompt) + tokens for prompt in prompts]
        self.computed = [0] * len(prompts)
        blocks = iter(self.random.sample(range(1, runner.num_blocks), runner.num_blocks - 1))
        self.tables = [[next(blocks) for _ in range(-(-n // runner.block_size))] for n in self.targets]
        self.step = 0

    def run(self, largest_chunk: int, params: SamplingParams = GREEDY) -> list[list[int]]:
        """Runs all to their end; returns the tokens that were added to each prompt."""
        starts = [len(known) for known in self.known]
        while running := [i for i, known in enumerate(self.known) if len(known) < self.targets[i]]:
            chosen = self.random.sample(running, self.random.randint(1, len(running)))
            chunks = [self._chunk(i, largest_chunk, params) for i in chosen]
            self._advance(sorted(chunks, key=lambda chunk: len(chunk.token_ids) > 1))
        return [known[start:] for known, start in zip(self.known, starts, strict=True)]

    def _chunk(self, i: int, largest: int, params: SamplingParams) -> Chunk:
        start, known = self.computed[i], self.known[i]
        end = min(len(known), start + self.random.randint(1, largest))
        table = self.tables[i][: -(-end // self.runner.block_size)]
        return Chunk(str(i), known[start:end], start, table, end == len(known), params)

    def _advance(self, chunks: Sequence[Chunk]) -> None:
        self.step += 1
        result = self.runner.launch(StepPlan(self.step, chunks))
        assert not result.failed
        assert result.sampled.keys() == {chunk.request_id for chunk in chunks if chunk.samples}
        for chunk in chunks:
            i = int(chunk.request_id)
            self.computed[i] += len(chunk.token_ids)
            if chunk.samples:
                self.known[i] += result.sampled[chunk.request_id]
