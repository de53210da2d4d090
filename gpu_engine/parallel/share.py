"""Which part of a model a rank keeps (Shoeybi et al. 2019, "Megatron-LM").

    rows       of queries, keys and values by heads, of gate and up, of embedding and head by vocabulary
    columns    of the matrices behind them, output and down: their products are summed over the ranks
    once       biases of those two, which rank 0 alone adds
    whole      norms and routers

Where there are fewer KV heads than ranks, neighbouring ranks keep the same head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.shapes import has_experts, tensor_shapes

BEHIND_A_SUM = frozenset({"o_proj", "down_proj"})


@dataclass(frozen=True, slots=True)
class Part:
    """Of a tensor the `spans` of dimension `dim`, one behind the other."""

    dim: int
    spans: Sequence[range]


@dataclass(frozen=True, slots=True)
class Share:
    """What rank `rank` of `size` has of a model of `config`; ask `refuse_uneven` first."""

    config: ModelConfig
    rank: int
    size: int

    @property
    def local(self) -> ModelConfig:
        """The config of a decoder that has this share alone; its vocabulary is still the whole one."""
        config, size = self.config, self.size
        experts = config.experts
        return replace(
            config,
            num_heads=config.num_heads // size,
            num_kv_heads=max(1, config.num_kv_heads // size),
            intermediate_size=config.intermediate_size // size,
            experts=experts and replace(experts, intermediate_size=experts.intermediate_size // size),
        )

    @property
    def vocabulary(self) -> range:
        """Token ids whose embeddings and logits are here."""
        return self.vocabularies[self.rank]

    @property
    def vocabularies(self) -> Sequence[range]:
        """Those of all ranks, which differ in length by one at most."""
        count, size = self.config.vocab_size, self.size
        return [range(rank * count // size, (rank + 1) * count // size) for rank in range(size)]

    def part(self, name: str) -> Part | None:
        """What is kept of the tensor `name`; None: all of it."""
        *_, module, kind = name.split(".")
        if module in BEHIND_A_SUM:
            return Part(1, [self._inputs(name)]) if kind == "weight" else None
        spans = self._outputs(module, name)
        return Part(0, spans) if spans else None

    @property
    def num_weights(self) -> int:
        """How many numbers are kept."""
        return sum(self._count(name, shape) for name, shape in tensor_shapes(self.config).items())

    def is_left_out(self, name: str) -> bool:
        """Whether `name` is a bias that another rank adds."""
        *_, module, kind = name.split(".")
        return self.rank > 0 and kind == "bias" and module in BEHIND_A_SUM

    def _count(self, name: str, shape: tuple[int, ...]) -> int:
        part = self.part(name)
        whole = prod(shape)
        return whole if part is None else whole // shape[part.dim] * sum(map(len, part.spans))

    def _outputs(self, module: str, name: str) -> list[range]:
        queries, keys, inner = self._queries, self._keys, self._inner(name)
        match module:
            case "q_proj":
                return [queries]
            case "k_proj" | "v_proj":
                return [keys]
            case "qkv_proj":
                behind = self.config.num_heads * self.config.head_dim
                values = behind + self.config.num_kv_heads * self.config.head_dim
                return [queries, _move(keys, behind), _move(keys, values)]
            case "gate_proj" | "up_proj":
                return [self._even(inner)]
            case "gate_up_proj":
                return [self._even(inner), _move(self._even(inner), inner)]
            case "embed_tokens" | "lm_head":
                return [self.vocabulary]
            case _:
                return []

    def _inputs(self, name: str) -> range:
        return self._queries if ".o_proj." in name else self._even(self._inner(name))

    def _inner(self, name: str) -> int:
        experts = self.config.experts
        is_expert = experts is not None and ".experts." in name
        return experts.intermediate_size if experts and is_expert else self.config.intermediate_size

    @property
    def _queries(self) -> range:
        return self._even(self.config.num_heads * self.config.head_dim)

    @property
    def _keys(self) -> range:
        heads, dim = self.config.num_kv_heads, self.config.head_dim
        if heads >= self.size:
            return self._even(heads * dim)
        head = self.rank * heads // self.size
        return range(head * dim, (head + 1) * dim)

    def _even(self, count: int) -> range:
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


def refuse_uneven(config: ModelConfig, size: int) -> None:
    """Raises ModelError, naming what does not divide, where the model cannot be shared by `size` ranks."""
    odd = _find_odd(config, size)
    if odd is None:
        return
    fitting = [n for n in range(1, config.num_heads + 1) if _find_odd(config, n) is None]
    raise ModelError(
        f"tensor_parallel_size {size} does not divide the {odd} of this model; it can be "
        f"{', '.join(map(str, fitting))}."
    )


def _find_odd(config: ModelConfig, size: int) -> str | None:
    """The first count that `size` ranks cannot share evenly, in words."""
    kv, experts = config.num_kv_heads, config.experts
    if config.num_heads % size:
        return f"{config.num_heads} query heads"
    if kv % size and size % kv:
        return f"{kv} KV heads"
    if config.intermediate_size % size and not all(has_experts(config, i) for i in range(config.num_layers)):
        return f"intermediate size {config.intermediate_size}"
    if experts is not None and experts.intermediate_size % size:
        return f"experts' intermediate size {experts.intermediate_size}"
    return f"{config.vocab_size} tokens" if config.vocab_size < size else None


def _move(span: range, by: int) -> range:
    return range(span.start + by, span.stop + by)
