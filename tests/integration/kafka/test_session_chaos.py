"""Consumers that are killed, freeze and wake over a real Kafka: one end, one line, one text."""

from __future__ import annotations

import uuid

import pytest

from tests.contract.chaos import ROUGH, Chaos, Odds
from tests.contract.kafka_case import kafka_case


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "odds"), [(0, Odds()), (1, ROUGH)], ids=["fair", "rough"])
async def test_every_run_ends_with_one_end_one_line_and_one_text(
    kafka_url: str, seed: int, odds: Odds
) -> None:
    case = await kafka_case(kafka_url, f"chaos-{uuid.uuid4().hex[:12]}")
    try:
        await Chaos(case, seed, requests=12, rounds=30, step_ms=case.lease_ms // 8, odds=odds).run()
    except BaseException as error:
        error.add_note(f"chaos over Kafka, seed {seed}")
        raise
    finally:
        await case.close()
