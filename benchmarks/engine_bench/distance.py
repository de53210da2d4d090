"""How far one set of logits is from another."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Distance:
    """From float32: mean Kullback-Leibler divergence over all positions, in nat, and the share of positions
    (0 to 1) whose likeliest token is the same."""

    divergence: float
    same_choice: float


def compare(reference: torch.Tensor, logits: torch.Tensor) -> Distance:
    """Of logits [T, V]."""
    expected, found = (torch.log_softmax(each.double(), dim=-1) for each in (reference, logits))
    divergence = (expected.exp() * (expected - found)).sum(dim=-1).mean()
    same = (reference.argmax(dim=-1) == logits.argmax(dim=-1)).double().mean()
    return Distance(float(divergence), float(same))
