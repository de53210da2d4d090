"""Which tokens may be drawn: top-k, min-p and top-p over rows with parameters of their own.

All take and return `weights` float64 [R, V], the unnormalised probabilities of a row relative to its
largest (which is 1), with 0 for a token that is out. Each row is computed by itself, so that its result
does not depend on its neighbours. A filter never removes the likeliest token.
"""

from __future__ import annotations

from typing import Final

import torch

SIZES: Final = (256, 2048)
"""How many of the likeliest tokens are looked at first, and next, before all are: sorting a whole
vocabulary takes longer than many a model's step, and the nucleus is nearly always small."""


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
    if not min_p.any():
        return weights
    return weights.masked_fill(weights < min_p[:, None], 0.0)


def keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest likeliest tokens whose share reaches `top_p` [R] (Holtzman et al. 2019); equal ones in
    the order of their ids. Shares are of what earlier filters left."""
    unsettled = (top_p < 1.0).nonzero()[:, 0]
    if not len(unsettled):
        return weights
    kept = weights.clone()
    for size in (*SIZES, weights.shape[1]):
        part, share = weights[unsettled], top_p[unsettled]
        wanted = share[:, None] * part.sum(-1, keepdim=True)
        is_last = size >= weights.shape[1]
        likely = part.topk(_candidates(part, share) if is_last else size, dim=-1).values
        reaches = (likely.sum(-1) >= wanted[:, 0]) | is_last
        kept[unsettled[reaches]] = _cut(part[reaches], likely[reaches], wanted[reaches])
        unsettled = unsettled[~reaches]
        if not len(unsettled):
            break
    return kept


def _candidates(weights: torch.Tensor, top_p: torch.Tensor) -> int:
    """How many tokens could be in a nucleus at most. Those below this share sum to less than 1 - top_p, so
    it is complete without them."""
    least = weights.sum(-1, keepdim=True) * (1 - top_p[:, None]) / weights.shape[1]
    return max(1, int((weights >= least).sum(-1).max()))


def _cut(weights: torch.Tensor, likely: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """`weights` cut to the nucleus, given the `likely` ones in descending order, which reach `wanted`."""
    before = likely.cumsum(-1) - likely
    count = (before < wanted).sum(-1, keepdim=True).clamp(min=1)
    least = likely.gather(1, count - 1)
    cut = weights.masked_fill(weights < least, 0.0)
    allowed = count - (likely > least).sum(-1, keepdim=True)
    equal = weights == least
    if (equal.sum(-1, keepdim=True) > allowed).any():
        cut.masked_fill_(equal & (equal.cumsum(-1) > allowed), 0.0)
    return cut
