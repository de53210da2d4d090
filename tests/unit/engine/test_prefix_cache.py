"""The prefix cache: equal tokens under equal salts are found, nothing else ever is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.memory.prefix_cache import Digest, strong_digest

BLOCK = 2


def memory(*, caching: bool = True, digest: Digest = strong_digest, num_blocks: int = 32) -> KVMemory:
    return KVMemory(num_blocks, BLOCK, enable_prefix_caching=caching, digest=digest)


def compute(kv: KVMemory, tokens: list[int], salt: bytes = b"") -> list[int]:
    """Acquires and computes `tokens` as a request does; returns its block table."""
    chain = kv.chain(salt)
    prefix = kv.lookup(chain, tokens)
    table = kv.acquire(prefix, len(tokens))
    kv.remember(chain, tokens, table, len(prefix), len(tokens) // BLOCK)
    return table


def hits(kv: KVMemory, tokens: list[int], salt: bytes = b"") -> int:
    """Tokens of `tokens` that need not be computed."""
    return len(kv.lookup(kv.chain(salt), tokens)) * BLOCK


def test_the_longest_known_prefix_is_found() -> None:
    kv = memory()
    table = compute(kv, [1, 2, 3, 4, 5])
    assert kv.lookup(kv.chain(), [1, 2, 3, 4, 9, 9]) == table[:2]
    assert kv.lookup(kv.chain(), [1, 2, 9, 9, 5, 6]) == table[:1]
    assert hits(kv, [9, 2, 3, 4, 5]) == 0


def test_a_block_that_is_not_full_is_not_cached() -> None:
    kv = memory()
    compute(kv, [1, 2, 3])
    assert hits(kv, [1, 2, 3, 4, 5]) == 2


def test_a_full_hit_leaves_one_token_to_compute() -> None:
    kv = memory()
    compute(kv, [1, 2, 3, 4])
    assert hits(kv, [1, 2, 3, 4]) == 2
    assert hits(kv, [1, 2, 3, 4, 5]) == 4


def test_the_same_tokens_in_another_place_are_no_hit() -> None:
    kv = memory()
    compute(kv, [1, 2, 1, 2, 1, 2, 9])
    assert hits(kv, [1, 2, 9, 9, 1, 2, 9]) == 2


def test_other_salts_never_meet() -> None:
    kv = memory()
    compute(kv, [1, 2, 3, 4, 5], salt=b"tenant a")
    assert hits(kv, [1, 2, 3, 4, 5], salt=b"tenant b") == 0
    assert hits(kv, [1, 2, 3, 4, 5]) == 0
    assert hits(kv, [1, 2, 3, 4, 5], salt=b"tenant a") == 4


def test_the_border_between_the_engines_salt_and_the_requests_cannot_be_moved() -> None:
    ours, theirs = (KVMemory(8, BLOCK, salt=salt) for salt in (b"model", b"mode"))
    assert ours.chain(b"x").keys([1, 2], 1)[0] != theirs.chain(b"lx").keys([1, 2], 1)[0]


def test_switched_off_nothing_is_ever_found() -> None:
    kv = memory(caching=False)
    compute(kv, [1, 2, 3, 4, 5])
    assert hits(kv, [1, 2, 3, 4, 5]) == 0


def test_content_is_forgotten_when_its_block_is_used_anew() -> None:
    kv = memory(num_blocks=4)
    kv.release(compute(kv, [1, 2, 3, 4, 5]))
    assert hits(kv, [1, 2, 3, 4, 5]) == 4
    kv.allocate(2)
    assert hits(kv, [1, 2, 3, 4, 5]) == 2, "the empty block goes first, then the tail of the prefix"
    kv.allocate(1)
    assert hits(kv, [1, 2, 3, 4, 5]) == 0


def test_a_found_prefix_is_not_taken_by_the_allocation_that_follows() -> None:
    kv = memory(num_blocks=4)
    first = compute(kv, [1, 2, 3, 4])
    kv.release(first)
    second = compute(kv, [1, 2, 7, 8, 9])
    assert second[0] == first[0]
    assert len(set(second)) == 3


def test_two_blocks_whose_hashes_collide_are_told_apart() -> None:
    kv = memory(digest=lambda data: b"all the same")
    table = compute(kv, [1, 2, 9])
    assert hits(kv, [3, 4, 9]) == 0
    compute(kv, [3, 4, 9])
    assert kv.lookup(kv.chain(), [1, 2, 9]) == table[:1], "the first one stays"
    assert hits(kv, [3, 4, 9]) == 0


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8))
def test_exactly_the_full_blocks_of_earlier_texts_are_found(texts: list[list[int]]) -> None:
    kv = memory(num_blocks=128)
    known: set[tuple[int, ...]] = set()
    for tokens in texts:
        full = [tuple(tokens[: (count + 1) * BLOCK]) for count in range((len(tokens) - 1) // BLOCK)]
        expected = next((count for count, prefix in enumerate(full) if prefix not in known), len(full))
        assert hits(kv, tokens) == expected * BLOCK
        compute(kv, tokens)
        known.update(tuple(tokens[: (count + 1) * BLOCK]) for count in range(len(tokens) // BLOCK))
