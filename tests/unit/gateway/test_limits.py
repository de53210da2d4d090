"""What is in flight through a gateway stays within its limits, and who is refused is told when to come."""

from __future__ import annotations

from collections import Counter

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.producer.gateway.drain_rate import LONGEST_S, SHORTEST_S, UNKNOWN_S, DrainRate
from headrace.producer.gateway.in_flight import InFlight
from headrace.producer.gateway.limits import USUAL_MAX_TOKENS, GatewayLimits, estimated_tokens
from headrace.v1 import inference_pb2 as pb
from tests.unit.gateway.clock import Clock

# --------------------------------------------------------------------------------------------- the estimate


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (pb.InferenceRequest(prompt="x" * 400), 100 + USUAL_MAX_TOKENS),
        (pb.InferenceRequest(prompt="x" * 400, sampling_params=pb.SamplingParams(max_tokens=7)), 107),
        (pb.InferenceRequest(token_ids=pb.TokenIds(ids=range(50))), 50 + USUAL_MAX_TOKENS),
        (pb.InferenceRequest(), USUAL_MAX_TOKENS),
        (pb.InferenceRequest(sampling_params=pb.SamplingParams(max_tokens=7, n=2, best_of=3)), 21),
    ],
)
def test_a_request_counts_for_a_quarter_of_its_bytes_and_what_it_may_answer(
    request_: pb.InferenceRequest, tokens: int
) -> None:
    assert estimated_tokens(request_) == tokens


def test_all_messages_of_a_chat_count() -> None:
    turns = [pb.ChatMessage(role="user", content="x" * 4000) for _ in range(3)]
    tokens = estimated_tokens(pb.InferenceRequest(chat=pb.Chat(messages=turns)))
    assert tokens - USUAL_MAX_TOKENS == pytest.approx(3000, rel=0.02)


# -------------------------------------------------------------------------------------------- the two bounds


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 60), st.none()), max_size=60))
def test_neither_bound_is_exceeded_and_whoever_leaves_makes_room(steps: list[int | None]) -> None:
    """A number: a request of so many tokens comes; None: the oldest one leaves."""
    in_flight = InFlight(GatewayLimits(max_requests=4, max_tokens=100), Clock())
    inside: list[int] = []
    for tokens in steps:
        if tokens is None:
            if inside:
                in_flight.leave(inside.pop(0))
        elif in_flight.enter(tokens) is None:
            inside.append(tokens)
        else:
            assert len(inside) == 4 or sum(inside) + tokens > 100
        assert (in_flight.requests, in_flight.tokens) == (len(inside), sum(inside))
        assert len(inside) <= 4
        assert sum(inside) <= 100


def test_a_request_larger_than_the_bound_is_taken_alone() -> None:
    in_flight = InFlight(GatewayLimits(max_tokens=100), Clock())
    assert in_flight.enter(500) is None
    assert in_flight.enter(1) is not None
    in_flight.leave(500)
    assert in_flight.enter(1) is None


@pytest.mark.parametrize(
    ("limits", "counted"), [({"max_requests": 2}, "requests"), ({"max_tokens": 9}, "tokens")]
)
def test_a_refusal_says_which_bound_it_was_and_asks_for_a_retry(limits: dict[str, int], counted: str) -> None:
    in_flight = InFlight(GatewayLimits(**limits), Clock())
    refusals = Counter(in_flight.enter(4) is None for _ in range(3))
    refusal = in_flight.enter(4)
    assert refusals == {True: 2, False: 1}
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (refusal.reason, refusal.facts["counted"]) == ("GATEWAY_FULL", counted)
    assert refusal.retry_after_ms


# -------------------------------------------------------------------------------------------- when to return


def test_until_something_was_seen_the_delay_is_a_guess() -> None:
    assert DrainRate(Clock()).delay_ms(1) == UNKNOWN_S * 1000


@pytest.mark.parametrize("seen_s", [3, 30])
def test_the_delay_follows_what_has_left_lately(seen_s: int) -> None:
    clock = Clock()
    rate = DrainRate(clock)
    for _ in range(seen_s * 10):
        clock.now += 0.1
        rate.observe(2)
    assert rate.delay_ms(100) == pytest.approx(5_000, rel=0.1)
    assert rate.delay_ms(1) == SHORTEST_S * 1000
    assert rate.delay_ms(10_000) == LONGEST_S * 1000


def test_where_nothing_leaves_the_delay_is_the_longest() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    rate.observe(1000)
    clock.now += 1000
    assert rate.delay_ms(1) == LONGEST_S * 1000
