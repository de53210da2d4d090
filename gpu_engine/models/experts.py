"""A mixture of experts (Shazeer et al. 2017), computed expert by expert over the tokens that chose it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from headrace.gpu_engine.models.layers import Linear, Part


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Gated MLPs of which each token takes the `per_token` that `router` [experts, hidden] finds likeliest.

    gate_up  [experts, 2 * inner, hidden], gate first
    down     [experts, hidden, inner]

    An expert that no token of the step chose costs nothing. What a token gets is summed in the order of its
    experts, whoever else is in the step, so that its rounding does not depend on its neighbours.
    """

    router: Linear
    gate_up: torch.Tensor
    down: torch.Tensor
    per_token: int
    normalised: bool
    activation: Part

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self._route(x)
        order = experts.flatten().argsort(stable=True)
        tokens = order // self.per_token
        shares = x[tokens].split(experts.flatten().bincount(minlength=len(self.down)).tolist())
        answers = torch.cat([self._compute(i, rows) for i, rows in enumerate(shares) if len(rows)])
        answers = answers * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, tokens, answers)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights in x's dtype and experts int64, both [T, per_token]."""
        probabilities = self.router(x).softmax(dim=-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.per_token, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True) if self.normalised else weights
        return weights.to(x.dtype), experts

    def _compute(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = linear(x, self.gate_up[expert]).chunk(2, dim=-1)
        return linear(self.activation(gate) * up, self.down[expert])
