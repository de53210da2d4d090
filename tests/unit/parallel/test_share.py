"""Which part of a model each rank keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headrace.gpu_engine.models.config import ExpertsConfig, ModelConfig, RopeConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.shapes import tensor_shapes
from headrace.gpu_engine.models.weights.dummy import RandomTensors
from headrace.gpu_engine.models.weights.safetensors import SafetensorsFolder
from headrace.gpu_engine.parallel.share import Share, refuse_uneven
from headrace.gpu_engine.parallel.source import SharedSource
from headrace.gpu_engine.plan import ModelSize, plan_capacity

BY_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")

CONFIG = ModelConfig(
    architecture="any",
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=8,
    num_kv_heads=2,
    head_dim=4,
    max_context=64,
    norm_eps=1e-5,
    rope=RopeConfig(theta=1e4),
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    qk_norm=True,
)


@st.composite
def shared_configs(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    """A config of one layer, and a number of ranks that can share it."""
    size = draw(st.integers(1, 4))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 8) if n % size == 0 or size % n == 0]))
    heads = draw(st.sampled_from([n for n in range(1, 25) if n % kv_heads == 0 and n % size == 0]))
    experts = ExpertsConfig(
        count=2, per_token=1, intermediate_size=3 * size, normalised=True, layers=frozenset({0})
    )
    config = replace(
        CONFIG,
        vocab_size=draw(st.integers(4, 40)),
        intermediate_size=size * draw(st.integers(1, 5)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        fused_projections=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        experts=experts if draw(st.booleans()) else None,
    )
    return config, size


@settings(max_examples=30, deadline=None)
@given(shared_configs())
def test_the_shares_of_all_ranks_are_the_whole_model_and_each_fits_its_own_decoder(
    shared: tuple[ModelConfig, int],
) -> None:
    """Each index of each tensor is kept equally often: once, but for KV heads that several ranks keep, and
    what is whole on each."""
    config, size = shared
    refuse_uneven(config, size)
    whole = tensor_shapes(config)
    kept = {name: Counter[int]() for name in whole}
    for rank in range(size):
        share = Share(config, rank, size)
        source = SharedSource(RandomTensors(whole), share)
        for name, shape in tensor_shapes(share.local).items():
            assert name in BY_VOCABULARY or source.read(name).shape == shape, name
            part = share.part(name)
            spans = [range(whole[name][0])] if part is None else part.spans
            assert sum(map(len, spans)) == source.read(name).shape[part.dim if part else 0]
            kept[name].update(index for span in spans for index in span)
    for name, counts in kept.items():
        times = {counts[index] for index in range(whole[name][_dim(config, name)])}
        several = max(1, size // config.num_kv_heads)
        assert times <= ({1, several} if _dim(config, name) or _is_cut(config, name) else {size}), name


def _dim(config: ModelConfig, name: str) -> int:
    part = Share(config, 0, 1).part(name)
    return part.dim if part else 0


def _is_cut(config: ModelConfig, name: str) -> bool:
    return Share(config, 0, 1).part(name) is not None


@settings(max_examples=30, deadline=None)
@given(shared_configs())
def test_each_query_head_has_its_own_kv_head_beside_it(shared: tuple[ModelConfig, int]) -> None:
    config, size = shared
    config = replace(config, fused_projections=False)
    group = config.num_heads // config.num_kv_heads
    for rank in range(size):
        share = Share(config, rank, size)
        queries, keys = (share.part(f"model.layers.0.self_attn.{x}_proj.weight") for x in "qk")
        assert queries is not None
        assert keys is not None
        first_query, first_key = (part.spans[0].start // config.head_dim for part in (queries, keys))
        local_group = share.local.num_heads // share.local.num_kv_heads
        for head in range(share.local.num_heads):
            assert (first_query + head) // group == first_key + head // local_group


@pytest.mark.parametrize(
    ("fields", "size", "sentence"),
    [
        ({}, 3, "does not divide the 8 query heads of this model; it can be 1, 2, 4, 8"),
        ({"num_kv_heads": 4, "num_heads": 12}, 3, "does not divide the 4 KV heads"),
        ({"intermediate_size": 25}, 2, "does not divide the intermediate size 25"),
        ({"vocab_size": 3}, 4, "does not divide the 3 tokens"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(fields: dict[str, int], size: int, sentence: str) -> None:
    with pytest.raises(ModelError, match=f"tensor_parallel_size {size} {sentence}"):
        refuse_uneven(replace(CONFIG, **fields), size)  # type: ignore[arg-type]  # a few int fields


def test_experts_are_refused_by_their_own_size_and_dense_ones_only_where_there_are_any() -> None:
    experts = ExpertsConfig(count=2, per_token=1, intermediate_size=9, normalised=True, layers=frozenset({0}))
    with pytest.raises(ModelError, match="experts' intermediate size 9"):
        refuse_uneven(replace(CONFIG, experts=experts), 2)
    even = replace(experts, intermediate_size=8)
    refuse_uneven(replace(CONFIG, experts=even, intermediate_size=25), 2)


def test_a_bias_behind_a_sum_is_added_by_one_rank() -> None:
    name = "model.layers.0.mlp.down_proj.bias"
    source = RandomTensors(tensor_shapes(CONFIG))
    shares = [SharedSource(source, Share(CONFIG, rank, 2)).read(name) for rank in range(2)]
    assert torch.equal(shares[0], source.read(name))
    assert not shares[1].any()


def test_a_folder_is_read_by_parts(tmp_path: Path) -> None:
    tensors = {"model.matrix": torch.randn(7, 9), "model.vector": torch.randn(9)}
    save_file(tensors, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert torch.equal(folder.read_span("model.matrix", 0, range(2, 5)), tensors["model.matrix"][2:5])
    assert torch.equal(folder.read_span("model.matrix", 1, range(3, 9)), tensors["model.matrix"][:, 3:9])
    assert torch.equal(folder.read_span("model.vector", 0, range(4)), tensors["model.vector"][:4])


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("fused", [False, True])
def test_the_plan_counts_what_the_ranks_keep(size: int, fused: bool) -> None:
    config = replace(CONFIG, fused_projections=fused)
    shapes = tensor_shapes(config)
    whole = ModelSize(
        name="any",
        num_weights=sum(map(prod, shapes.values())),
        num_layers=1,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_context=64,
        config=config,
    )
    plan = plan_capacity(whole, gpu_bytes=1 << 20, gpus=size, num_tokens=64, dtype_bytes=4)
    shares = [Share(config, rank, size) for rank in range(size)]
    source = RandomTensors(shapes)
    kept = [SharedSource(source, share).read(name) for share in shares for name in shapes]
    assert plan.weight_bytes == sum(tensor.nbytes for tensor in kept)
    per_token = sum(2 * share.local.num_kv_heads * config.head_dim * 4 for share in shares)
    assert plan.kv_bytes_per_token == per_token


def test_the_plan_refuses_what_ranks_refuse() -> None:
    size = ModelSize(
        name="any", num_weights=1, num_layers=1, num_kv_heads=2, head_dim=4, max_context=64, config=CONFIG
    )
    with pytest.raises(ModelError, match="3 does not divide the 8 query heads"):
        plan_capacity(size, gpu_bytes=1 << 20, gpus=3, num_tokens=64)
