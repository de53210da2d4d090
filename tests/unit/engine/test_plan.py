"""What fits, told from a config alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.app import build_app
from headrace.cli.errors import Mistake
from headrace.cli.models import demo_model
from headrace.cli.plan import parse_size
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.plan import ModelSize, measure_model, plan_capacity

GIB = 1 << 30

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
"""Llama 3.1 70B, as its config.json says."""


def folder_of(tmp_path: Path, config: dict[str, object]) -> Path:
    """A folder with a config and no weights."""
    folder = tmp_path / "Llama-3.1-70B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SIZE = ModelSize(name="m", num_weights=1000, num_layers=2, num_kv_heads=3, head_dim=8, max_context=500)


def test_llama_3_1_70b_on_four_gpus_of_80_gib_holds_130_requests_of_4096_tokens(tmp_path: Path) -> None:
    size = measure_model(str(folder_of(tmp_path, LLAMA_70B)))
    capacity = plan_capacity(size, gpu_bytes=80 * GIB, gpus=4, num_tokens=4096)
    assert size.num_weights == 70_553_706_496
    assert capacity.kv_bytes_per_token == 327_680
    assert capacity.kv_bytes_per_request == pytest.approx(1.342e9, rel=1e-3)
    assert 128 <= capacity.num_requests <= 140


def test_the_command_prints_it(tmp_path: Path) -> None:
    model = str(folder_of(tmp_path, LLAMA_70B))
    words = ["plan", "--model", model, "--gpu-memory", "80GiB", "--gpus", "4", "--tokens", "4096"]
    shown = CliRunner().invoke(build_app("plan"), words).output
    for piece in (
        "Llama-3.1-70B: 80 layers, 8 KV heads of 128",
        "141.1 GB (70,554 million), 35.3 GB on each GPU",
        "327,680 bytes",
        "1.34 GB of 4,096 tokens",
        "130 requests of 4,096 tokens",
    ):
        assert piece in shown


def test_a_gguf_file_is_measured_by_its_header() -> None:
    size = measure_model(str(demo_model()))
    assert (size.num_weights, size.num_layers, size.num_kv_heads) == (134_515_008, 30, 3)


def test_a_model_that_transformers_computes_is_measured_without_memory_for_its_weights(
    tmp_path: Path,
) -> None:
    config = {
        "model_type": "stablelm",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 50000,
        "max_position_embeddings": 4096,
    }
    size = measure_model(str(folder_of(tmp_path, config)))
    assert (size.num_layers, size.num_kv_heads, size.head_dim, size.max_context) == (40, 8, 128, 4096)
    assert size.num_weights > 30e9


def test_weights_that_do_not_fit_are_told_with_the_number_of_gpus_that_would_do(tmp_path: Path) -> None:
    size = measure_model(str(folder_of(tmp_path, LLAMA_70B)))
    with pytest.raises(ModelError, match="use 2 such GPUs or more"):
        plan_capacity(size, gpu_bytes=80 * GIB, num_tokens=4096)
    assert plan_capacity(size, gpu_bytes=80 * GIB, gpus=2, num_tokens=4096).num_requests > 0


def test_requests_longer_than_the_context_are_a_mistake() -> None:
    with pytest.raises(ModelError, match="context of 500 tokens"):
        plan_capacity(SIZE, gpu_bytes=GIB, num_tokens=501)


def test_heads_that_do_not_divide_among_the_gpus_are_kept_twice() -> None:
    alone = plan_capacity(SIZE, gpu_bytes=GIB, num_tokens=100)
    together = plan_capacity(SIZE, gpu_bytes=GIB, gpus=2, num_tokens=100)
    assert together.kv_bytes_per_token == alone.kv_bytes_per_token * 4 // 3


@settings(max_examples=100, deadline=None)
@given(
    memory=st.integers(10_000, 10**8),
    gpus=st.integers(1, 8),
    tokens=st.integers(1, 500),
    block=st.integers(1, 64),
    share=st.floats(0.3, 1),
)
def test_what_is_said_to_fit_fits_and_one_more_does_not(
    memory: int, gpus: int, tokens: int, block: int, share: float
) -> None:
    capacity = plan_capacity(
        SIZE, gpu_bytes=memory, gpus=gpus, num_tokens=tokens, block_size=block, utilization=share
    )
    null_block = block * capacity.kv_bytes_per_token
    held = capacity.num_requests * capacity.kv_bytes_per_request + null_block
    room = share * memory * gpus - capacity.weight_bytes
    assert capacity.num_requests == 0 or held <= room
    assert held + capacity.kv_bytes_per_request + null_block > room - gpus


def test_half_the_bytes_a_number_are_half_the_memory() -> None:
    full = plan_capacity(SIZE, gpu_bytes=GIB, num_tokens=100, dtype_bytes=4)
    half = plan_capacity(SIZE, gpu_bytes=GIB, num_tokens=100, dtype_bytes=2)
    assert half.weight_bytes * 2 == full.weight_bytes
    assert half.kv_bytes_per_request * 2 == full.kv_bytes_per_request


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * GIB), ("80GB", 80 * 10**9), ("1.5 TB", 1.5e12), ("512MiB", 1 << 29), ("1000", 1000)],
)
def test_sizes_are_understood_with_either_kind_of_unit(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "80 gigabytes", "-5GB", "80iB"])
def test_other_sizes_are_mistakes(text: str) -> None:
    with pytest.raises(Mistake, match="such as 80GiB"):
        parse_size(text)
