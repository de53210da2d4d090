"""Consumers that are killed, freeze and wake over a real Kafka: one end, one line, one text."""

from __future__ import annotations

import uuid

import pytest

from tests.contract.chaos import Chaos
from tests.contract.kafka_case import kafka_case


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_every_run_ends_with_one_end_one_line_and_one_text(kafka_url: str, seed: int) -> None:
    case = await kafka_case(kafka_url, f"chaos-{uuid.uuid4().hex[:12]}")
    try:
        await Chaos(case, seed, requests=12, rounds=30, step_ms=case.lease_ms // 8).run()
    except BaseException as error:
        error.add_note(f"chaos over Kafka, seed {seed}")
        raise
    finally:
        await case.close()
