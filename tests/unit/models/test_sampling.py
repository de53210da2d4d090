"""The sampler draws what its parameters say, and the same whoever its neighbours are."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sampling.noise import uniform
from tests.support.sampling import sample

torch.set_num_threads(1)

VOCAB = 40


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def naive_probabilities(logits: list[float], params: SamplingParams) -> npt.NDArray[np.float64]:
    """The distribution as the docstring of SamplingParams tells it, token by token."""
    top = max(logits)
    kept = {i: math.exp((x - top) / params.temperature) for i, x in enumerate(logits)}
    if params.top_k:
        kth = sorted(kept.values(), reverse=True)[min(params.top_k, len(kept)) - 1]
        kept = {i: w for i, w in kept.items() if w >= kth}
    bound = params.min_p * max(kept.values())
    kept = {i: w for i, w in kept.items() if w >= bound}
    if params.top_p < 1:
        nucleus: dict[int, float] = {}
        total, reached = sum(kept.values()), 0.0
        for i, w in sorted(kept.items(), key=lambda item: (-item[1], item[0])):
            if reached >= params.top_p * total and nucleus:
                break
            nucleus[i] = w
            reached += w
        kept = nucleus
    weights = np.array([kept.get(i, 0.0) for i in range(len(logits))])
    return np.asarray(weights / weights.sum())


def naive_token(logits: list[float], params: SamplingParams, position: int) -> int:
    cumulated = naive_probabilities(logits, params).cumsum()
    assert params.seed is not None
    return int(np.searchsorted(cumulated, uniform(params.seed, position), side="right"))


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, VOCAB, VOCAB + 5]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(params_strategy, min_size=1, max_size=6), st.integers(0, 1000))
def test_every_row_of_a_mixed_batch_gives_the_token_of_a_naive_sampler(
    batch: list[SamplingParams], seed: int
) -> None:
    logits = logits_of(seed, len(batch))
    expected = [naive_token(row, p, seed) for row, p in zip(logits.tolist(), batch, strict=True)]
    assert sample(logits, batch, [seed] * len(batch)) == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(params_strategy, min_size=2, max_size=6), st.integers(0, 1000))
def test_a_row_draws_the_same_token_alone_as_in_a_batch(batch: list[SamplingParams], seed: int) -> None:
    logits, positions = logits_of(seed, len(batch)), list(range(5, 5 + len(batch)))
    together = sample(logits, batch, positions)
    alone = [sample(logits[i : i + 1], [p], [positions[i]])[0] for i, p in enumerate(batch)]
    assert together == alone


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.01, 0.3, 2.0]), st.sampled_from([0.3, 0.9, 0.999]))
def test_the_nucleus_is_right_in_large_vocabularies_flat_peaked_or_full_of_ties(
    seed: int, spread: float, top_p: float
) -> None:
    """4000 tokens, many segments of the sum; rounded, so that many weigh the same."""
    generator = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(3, 4000, generator=generator)).round(decimals=1)
    logits[1] *= 4
    logits[2, :300] += 6
    batch = [SamplingParams(top_p=top_p, seed=seed)] * 3
    expected = [naive_token(row, batch[0], 1) for row in logits.tolist()]
    assert sample(logits, batch, [1, 1, 1]) == expected


def test_in_a_large_vocabulary_each_kind_of_row_draws_the_same_token_alone_and_beside_the_others() -> None:
    batch = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_k=50),
        SamplingParams(seed=3, min_p=0.02),
        SamplingParams(seed=4, top_p=0.9),
        SamplingParams(seed=5, top_k=900, min_p=1e-4, top_p=0.99),
        SamplingParams(temperature=0),
    ]
    logits = 3 * torch.randn(len(batch), 5000, generator=torch.Generator().manual_seed(8))
    together = sample(logits, batch, [9] * len(batch))
    assert together == [sample(logits[i : i + 1], [own], [9])[0] for i, own in enumerate(batch)]
    naive = [naive_token(row, own, 9) for row, own in zip(logits[:5].tolist(), batch[:5], strict=True)]
    assert together == [*naive, int(logits[5].argmax())]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=0),
        SamplingParams(temperature=1.7, top_k=5, seed=0),
        SamplingParams(temperature=1.0, top_p=0.8, seed=0),
        SamplingParams(temperature=1.3, min_p=0.1, seed=0),
        SamplingParams(temperature=1.0, top_k=12, min_p=0.02, top_p=0.9, seed=0),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "all"],
)
def test_drawn_tokens_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-square over 4000 positions of one seed; the bound is five standard deviations."""
    draws = 4000
    logits = logits_of(3)
    tokens = sample(logits.expand(draws, -1), [params] * draws, range(draws))
    expected = naive_probabilities(logits[0].tolist(), params) * draws
    seen = Counter(tokens)
    assert all(expected[token] > 0 for token in seen if token is not None)
    cells = [i for i in range(VOCAB) if expected[i] >= 5]
    chi_square = sum((seen[i] - expected[i]) ** 2 / expected[i] for i in cells)
    assert chi_square < len(cells) + 5 * math.sqrt(2 * len(cells))


def test_temperature_zero_is_greedy_whatever_the_filters_say() -> None:
    logits = logits_of(1, 3)
    batch = [SamplingParams(temperature=0, top_k=3, top_p=0.1, seed=i) for i in range(3)]
    assert sample(logits, batch, [0, 1, 2]) == logits.argmax(-1).tolist()


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert sample(torch.zeros(1, VOCAB), [SamplingParams(temperature=0)], [0]) == [0]


def test_a_tiny_temperature_is_greedy_and_not_an_overflow() -> None:
    logits = logits_of(2)
    assert sample(logits, [SamplingParams(temperature=1e-300, seed=0)], [9]) == [int(logits.argmax())]


def test_the_largest_temperature_makes_all_tokens_alike_and_overflows_nothing() -> None:
    draws = sample(
        logits_of(2).expand(500, -1), [SamplingParams(temperature=1e300, seed=0)] * 500, range(500)
    )
    assert len(set(draws)) == VOCAB


def test_finite_logits_are_finite_even_if_their_sum_is_not() -> None:
    logits = torch.full((2, VOCAB), 3e38)
    logits[:, 7] = -3e38
    greedy, drawn = sample(logits, [SamplingParams(temperature=0), SamplingParams(seed=1)], [1, 1])
    assert greedy == 0
    assert drawn not in (None, 7)


def test_a_row_that_is_not_finite_fails_alone() -> None:
    logits = logits_of(4, 5)
    expected = sample(logits, [SamplingParams(temperature=t, seed=0) for t in (0, 1, 0, 1, 1)], range(5))
    logits[0, 7], logits[1, 3], logits[2, 0] = torch.nan, torch.inf, -torch.inf
    batch = [SamplingParams(temperature=t, seed=0) for t in (0, 1, 0, 1, 1)]
    assert sample(logits, batch, range(5)) == [None, None, None, *expected[3:]]


def test_half_precision_logits_are_sampled_too() -> None:
    logits = logits_of(5).bfloat16()
    assert sample(logits, [SamplingParams(seed=3)], [1]) == sample(
        logits.float(), [SamplingParams(seed=3)], [1]
    )


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, VOCAB), [], []) == []


def test_noise_is_uniform_and_uncorrelated_between_neighbouring_seeds_and_positions() -> None:
    grid = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    assert abs(grid.mean() - 0.5) < 0.01
    assert abs(grid.var() - 1 / 12) < 0.005
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(grid)) == grid.size


def test_noise_is_written_in_stone() -> None:
    """An answer may be resumed by another version: its noise must not change. Seeds count modulo 2^64."""
    pinned = [0.6524484863740322, 0.6952598398323256, 0.7238582745899125, 0.7238582745899125]
    assert [uniform(0, 0), uniform(42, 1000), uniform(-1, 7), uniform(2**64 - 1, 7)] == pinned
