"""Steps that go on after memory has run out.

    launch ──out of memory──► halve the step's tokens ──► schedule and launch again
                                   │   (drafts go first)   (more requests than tokens: some give way)
                                   └── it was a single token: its request fails

Nothing is lost, since a request's tokens count as computed only when a step has brought its result: the next
plan computes the same ones, fewer at a time.
"""

from __future__ import annotations

from typing import Final

from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from headrace.gpu_engine.steps import OutOfMemory, Steps

HOPELESS: Final = (
    "The engine has too little memory to compute even a single token of this request; "
    "use a smaller model or KV cache, or shorten the request."
)


class SparingSteps:
    """Takes a step again with half of its tokens, until it fits into memory; wraps other `Steps`."""

    def __init__(self, steps: Steps, budget: StepBudget) -> None:
        self._steps = steps
        self._budget = budget

    def take(self) -> tuple[StepPlan, StepResult]:
        while True:
            try:
                taken = self._steps.take()
            except OutOfMemory as failure:
                plan = failure.plan
            else:
                self._budget.note_success()
                return taken
            if not self._budget.shrink(plan.num_tokens, plan.num_draft_tokens):
                return plan, StepResult(plan.step, {}, {chunk.request_id: HOPELESS for chunk in plan.chunks})
