"""Which tokens may be drawn: top-k, min-p and top-p over rows with parameters of their own.

All take and return `weights` float64 [R, V], the unnormalised probabilities of a row relative to its
largest (which is 1), with 0 for a token that is out. Each row is computed by itself, so that its result
does not depend on its neighbours. A filter never removes the likeliest token.
"""

from __future__ import annotations

import torch


def keep_top_k(weights: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The `top_k` [R] likeliest tokens; 0 keeps all. Tokens as likely as the k-th stay, as in vLLM."""
    wanted = torch.where(top_k > 0, top_k, weights.shape[1]).clamp(max=weights.shape[1])
    limited = wanted < weights.shape[1]
    if not limited.any():
        return weights
    largest = weights.topk(int(wanted[limited].max()), dim=-1).values
    last = (wanted.clamp(max=largest.shape[1]) - 1)[:, None]
    threshold = torch.where(limited[:, None], largest.gather(1, last), 0.0)
    return weights.masked_fill(weights < threshold, 0.0)


def keep_min_p(weights: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Tokens at least `min_p` [R] times as likely as the likeliest (Nguyen et al. 2024)."""
    return weights.masked_fill(weights < min_p[:, None], 0.0)


def keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest likeliest tokens whose share reaches `top_p` [R] (Holtzman et al. 2019); equal ones in
    the order of their ids. Shares are of what earlier filters left."""
    rows = (top_p < 1.0).nonzero()[:, 0]
    if not len(rows):
        return weights
    kept = weights.clone()
    kept[rows] = _nucleus(weights[rows], top_p[rows])
    return kept


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    total = weights.sum(-1, keepdim=True)
    # Tokens below this share sum to less than 1 - top_p, so the nucleus is complete without them; what is
    # left is so few that sorting it is cheap.
    least = total * (1 - top_p[:, None]) / weights.shape[1]
    candidates = int((weights >= least).sum(-1).max())
    likely, ids = weights.topk(max(1, candidates), dim=-1)
    order = _by_weight_then_id(likely, ids)
    likely, ids = likely.gather(1, order), ids.gather(1, order)
    before = likely.cumsum(-1) - likely
    likely = likely.masked_fill(before >= top_p[:, None] * total, 0.0)
    likely[:, 0] = weights.amax(-1)
    return torch.zeros_like(weights).scatter_(1, ids, likely)


def _by_weight_then_id(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The order of descending weights, ascending ids among equals: two stable sorts, the last key first."""
    by_id = ids.argsort(dim=-1)
    return by_id.gather(1, weights.gather(1, by_id).argsort(dim=-1, descending=True, stable=True))
