"""Whatever crashes, freezes and wakes: one end, one line, one text for each request."""

from __future__ import annotations

import random
import uuid

import pytest

from tests.contract.chaos import ROUGH, Chaos, Odds
from tests.contract.memory_case import memory_case
from tests.contract.mutants import MUTANTS
from tests.contract.redis_case import redis_case

SEEDS_TO_CATCH_A_MUTANT = 60


async def run_over_memory(seed: int, odds: Odds) -> int:
    """Returns how often an answer was resumed."""
    case = memory_case(f"chaos-{seed}", hops=random.Random(seed))
    chaos = Chaos(case, seed, step_ms=case.lease_ms // 12, odds=odds)
    try:
        await chaos.run()
    except BaseException as error:
        error.add_note(f"chaos over the in-memory log, seed {seed}")
        raise
    finally:
        await case.close()
    return chaos.resumed


async def run_all_over_memory(seeds: range, odds: Odds) -> int:
    return sum([await run_over_memory(seed, odds) for seed in seeds])


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
async def test_over_kafkas_rules_every_schedule_ends_with_one_end_one_line_and_one_text(block: int) -> None:
    resumed = await run_all_over_memory(range(block * 10, block * 10 + 10), Odds())
    assert resumed >= 20, "consumers died between answers only"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_chaos_catches_a_broken_rule(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant].apply(monkeypatch)
    with pytest.raises(AssertionError):
        await run_all_over_memory(range(SEEDS_TO_CATCH_A_MUTANT), MUTANTS[mutant].odds)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "odds"), [(0, Odds()), (1, Odds()), (2, ROUGH)])
async def test_over_redis_every_run_ends_with_one_end_one_line_and_one_text(
    valkey_url: str, seed: int, odds: Odds
) -> None:
    case = await redis_case(valkey_url, f"chaos-{uuid.uuid4().hex[:12]}")
    try:
        await Chaos(case, seed, requests=12, rounds=40, step_ms=case.lease_ms // 8, odds=odds).run()
    except BaseException as error:
        error.add_note(f"chaos over Redis, seed {seed}")
        raise
    finally:
        await case.close()
