"""The engine's settings as options, and back."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.engine_options import engine_arguments, takes_engine
from headrace.cli.errors import Mistake
from headrace.cli.models import demo_model, served_names
from headrace.gpu_engine.config import EngineConfig, SimConfig


def parse(*arguments: str) -> EngineConfig:
    """What a command gets from this command line."""
    seen: list[EngineConfig] = []

    @takes_engine
    def command(engine: EngineConfig, other: int = 0) -> None:
        seen.append(engine)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [*arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return seen[0]


def test_without_options_the_config_is_the_default_one() -> None:
    assert parse() == EngineConfig()


UNUSUAL = EngineConfig(
    engine="sim",
    model="some/folder",
    load_format="dummy",
    dtype="bfloat16",
    backend="torch",
    tensor_parallel_size=2,
    weight_format="int8",
    kv_cache_dtype="bfloat16",
    attention="reference",
    block_size=32,
    num_kv_blocks=77,
    kv_cache_bytes=1 << 25,
    max_batch_size=3,
    max_batch_tokens=99,
    max_input_length=1000,
    max_total_tokens=2000,
    batching_policy="dynamic",
    max_waiting_tokens=333,
    max_wait_ms=7.5,
    max_queue_size=11,
    max_queue_tokens=2222,
    enable_chunked_prefill=False,
    enable_prefix_caching=False,
    swap_space_bytes=1 << 24,
    watermark=0.25,
    enable_peak_admission=False,
    priority_ageing_ms=750.0,
    lora_modules={"sql": "adapters/sql", "poems": "adapters/a=b"},
    max_lora_rank=8,
    speculative_method="ngram",
    num_speculative_tokens=5,
    prompt_lookup_max=6,
    prompt_lookup_min=3,
    adaptive_speculation=False,
    pooling="mean",
    normalize=False,
    tool_call_format="hermes",
    trace_path="steps.jsonl",
    threads=2,
    pin_threads=True,
    sim=SimConfig(
        first_token_ms=1.5, step_ms=0.25, tokens=9, fail_every=3, crash_after_steps=4, hang_after_steps=5
    ),
)


def test_every_field_survives_the_way_through_a_command_line() -> None:
    differing = {name for name, field in EngineConfig.model_fields.items()} - {
        name for name in EngineConfig.model_fields if getattr(UNUSUAL, name) == getattr(EngineConfig(), name)
    }
    assert differing == set(EngineConfig.model_fields) - {"device"}, "name a new field here, and give it help"
    assert parse(*engine_arguments(UNUSUAL)) == UNUSUAL


def test_defaults_are_left_out_of_a_childs_command_line() -> None:
    assert engine_arguments(EngineConfig()) == []


def test_a_value_out_of_range_is_a_mistake_that_names_its_option() -> None:
    with pytest.raises(Mistake, match="--block-size"):
        parse("--block-size", "0")
    with pytest.raises(Mistake, match="--sim-step-ms"):
        parse("--sim-step-ms", "-1")


def test_a_shortest_match_longer_than_the_longest_is_a_mistake() -> None:
    with pytest.raises(Mistake, match=r"--prompt-lookup-min: .*at most prompt_lookup_max, which is 3"):
        parse("--prompt-lookup-min", "4", "--prompt-lookup-max", "3")
    with pytest.raises(Mistake, match=r"--prompt-lookup-min: .*at most prompt_lookup_max, which is 4"):
        parse("--prompt-lookup-min", "5")


def test_the_short_name_of_the_demo_model_stands_for_its_file() -> None:
    config = parse("--model", "smollm2-demo")
    assert config.model == str(demo_model())
    assert served_names(config.model) == ("SmolLM2-135M-Instruct", "smollm2-demo")
    assert served_names("some/folder") == ()


def test_adapters_are_named_one_by_one() -> None:
    config = parse("--lora-module", "a=some/folder", "--lora-module", "b=other=folder")
    assert config.lora_modules == {"a": "some/folder", "b": "other=folder"}


@pytest.mark.parametrize(
    ("given", "reason"), [(["a"], "NAME=PATH"), (["=x"], "NAME=PATH"), (["a=x", "a=y"], "'a' comes twice")]
)
def test_an_adapter_that_has_no_name_or_anothers_is_refused(given: list[str], reason: str) -> None:
    with pytest.raises(Mistake, match=f"--lora-module: .*{reason}"):
        parse(*[part for pair in given for part in ("--lora-module", pair)])
