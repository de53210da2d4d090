"""All adapters of an engine, loaded at its start and kept in memory, and whose rows the step now has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.gpu_engine.lora.adapter import Adapter, load_adapter
from headrace.gpu_engine.lora.places import Matrix
from headrace.gpu_engine.lora.rows import BARE, AdapterRows, group_rows
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.scheduling.step import Chunk


class Adapters:
    """Adapters by number. `rows` says which of the step that is computed now belong to which; None: no row
    has an adapter, and none costs anything. `loaded`: their tensors, until whoever computes with them has
    taken them; `fingerprints` by name."""

    def __init__(self, adapters: Sequence[Adapter] = ()) -> None:
        self.loaded = adapters
        self.rows: AdapterRows | None = None
        self.fingerprints: Mapping[str, str] = {one.name: one.fingerprint for one in adapters}
        self.num_bytes = sum(adapter.num_bytes for adapter in adapters)
        self._numbers = {adapter.name: number for number, adapter in enumerate(adapters)}

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """A step of these chunks is computed next."""
        if self._numbers:
            numbers = [BARE if c.adapter is None else self._numbers[c.adapter] for c in chunks]
            self.rows = group_rows(numbers, [len(chunk.token_ids) for chunk in chunks])

    def add_to(self, layer: int, matrix: Matrix) -> bool:
        """Whether any of them adds to this matrix."""
        return any(matrix in adapter.layers[layer] for adapter in self.loaded)

    def release(self) -> None:
        """The tensors have been laid out elsewhere."""
        self.loaded = ()


def load_adapters(
    modules: Mapping[str, str], model: ModelConfig, *, model_name: str, max_rank: int
) -> Adapters:
    """Loads `modules`, folders by the names that requests use. Raises ModelError."""
    loaded = []
    for name, path in modules.items():
        if name == model_name:
            raise ModelError(f"The LoRA adapter {name} has the model's own name; give it another.")
        loaded.append(load_adapter(name, Path(path).expanduser(), model, max_rank))
    return Adapters(loaded)
