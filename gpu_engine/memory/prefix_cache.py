"""The prefix cache: which block holds the KV of which tokens after which others.

A full block's key is a hash over its parent's hash and its own tokens, so that equal keys mean equal
tokens from the start (the hash chain of vLLM's automatic prefix caching). The chain begins with a salt,
which keeps models, adapters and tenants apart. The hash is BLAKE2b with 16 bytes; besides, every hit
compares the tokens and the parent's hash, so that blocks with colliding hashes are told apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

Digest: TypeAlias = Callable[[bytes], bytes]


def strong_digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


class BlockKey(NamedTuple):
    """What a full block holds: `token_ids` [block_size] after the prefix that hashes to `parent`."""

    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]


class HashChain:
    """The keys of one request's full blocks, each computed once. Its tokens only ever grow."""

    def __init__(self, block_size: int, salt: bytes, digest: Digest = strong_digest) -> None:
        self._block_size = block_size
        self._digest = digest
        self._root = digest(salt)
        self._keys: list[BlockKey] = []

    def keys(self, token_ids: Sequence[int], count: int) -> Sequence[BlockKey]:
        """Keys of the first `count` blocks of `token_ids`, which must all be full."""
        for number in range(len(self._keys), count):
            self._keys.append(self._key(token_ids, number))
        return self._keys[:count]

    def _key(self, token_ids: Sequence[int], number: int) -> BlockKey:
        tokens = tuple(token_ids[number * self._block_size : (number + 1) * self._block_size])
        assert len(tokens) == self._block_size, f"block {number} is not full"
        parent = self._keys[number - 1].digest if number else self._root
        return BlockKey(self._digest(parent + array("q", tokens).tobytes()), parent, tokens)


class PrefixCache:
    """Maps keys to the blocks that hold their KV, one block a key; it holds no reference itself."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, tuple[BlockKey, int]] = {}
        self._keys: dict[int, BlockKey] = {}
        self.evictions = 0

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def lookup(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks of the longest prefix of `keys` that is known."""
        blocks: list[int] = []
        for key in keys:
            entry = self._blocks.get(key.digest)
            if entry is None or entry[0] != key:
                break
            blocks.append(entry[1])
        return blocks

    def insert(self, key: BlockKey, block: int) -> None:
        """From now on `block` answers for `key`. The first block of a key stays the one; so does the
        first key of a digest, should another ever hash to the same."""
        if block not in self._keys and key.digest not in self._blocks:
            self._blocks[key.digest] = (key, block)
            self._keys[block] = key

    def evict(self, block: int) -> None:
        """Forgets what `block` holds, if anything: it is about to be written anew."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key.digest]
            self.evictions += 1

    def check_invariants(self) -> None:
        """Both maps say the same."""
        assert len(self._blocks) == len(self._keys), "keys and blocks of the prefix cache differ in number"
        for digest, (key, block) in self._blocks.items():
            assert digest == key.digest, "a key stands under another's digest"
            assert self._keys.get(block) is key, f"block {block} has another key"
