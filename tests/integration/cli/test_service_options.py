"""Options of consumers and gateways: what they mean, and that `up` hands them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from headrace.broker.message import Lane
from headrace.broker.queue_policy import QueuePolicy
from headrace.cli.app import execute
from headrace.cli.errors import Mistake
from headrace.cli.service_options import blob_store, lane_policies, repeated, tenant_weights
from headrace.cli.settings import read_environment
from headrace.cli.stack import StackOptions
from headrace.consumer.settings import ConsumerSettings
from headrace.producer.gateway.settings import GatewaySettings
from tests.integration.cli.conftest import PATIENCE_S, SIM, Spawn, chat_line
from tests.integration.cli.test_up import up


def test_policies_are_read_by_lane() -> None:
    policies = lane_policies(["batch:size=10,timeout=2,on-timeout=delay", "standard:may-shorten=no"])
    assert policies == {
        Lane.BATCH: QueuePolicy(size=10, timeout_ms=2000, on_timeout="delay"),
        Lane.STANDARD: QueuePolicy(may_shorten=False),
    }
    assert lane_policies(None) == {}


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["express:size=1"], "'express' is no lane"),
        (["batch:speed=1"], "'speed' is no setting"),
        (["batch:size=many"], "size=many is no number"),
        (["batch:size=1", "batch:timeout=2"], "batch has two"),
    ],
)
def test_a_policy_that_makes_no_sense_is_a_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(Mistake, match=f"--lane-policy: .*{sentence}"):
        lane_policies(texts)


def test_weights_are_read_by_tenant() -> None:
    assert tenant_weights(["a=2", "b=c=0.5"]) == {"a": 2.0, "b=c": 0.5}
    for nonsense in ("a", "a=", "a=0", "a=-1", "a=nan", "a=inf", "a=x"):
        with pytest.raises(Mistake, match="--tenant-weight takes NAME=NUMBER"):
            tenant_weights([nonsense])


def test_the_blob_store_may_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blob_store(None, read_environment()) is None
    monkeypatch.setenv("HEADRACE_BLOBS", "memory://folder")
    assert blob_store(None, read_environment()) == "memory://folder"
    assert blob_store("/srv/blobs", read_environment()) == "/srv/blobs"


def test_an_option_that_was_given_twice_is_handed_on_twice() -> None:
    assert repeated("--a", ["1", "2"]) == ("--a", "1", "--a", "2")
    assert repeated("--a", None) == ()


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--lane-policy", "express:size=1"), ("--tenant-weight", "a"), ("--pool", "a.b")),
        *(("--blobs", ""), ("--blobs", "/proc/x"), ("--blobs", "/dev/null/x")),
        *(("--served-model-name", ""), ("--served-model-name", " "), ("--served-model-name", "a\nb")),
    ],
)
def test_up_says_what_is_wrong_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert execute(["up", *SIM, "--data-dir", str(tmp_path / "d"), *arguments]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("headrace: ")
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_up_hands_pool_policies_and_blob_store_on(spawn: Spawn, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    _, ready = up(
        spawn,
        tmp_path,
        *("--pool", "vision", "--blobs", str(blobs), "--blob-threshold", "100"),
        *("--lane-policy", "standard:size=1000,timeout=60", "--tenant-weight", "a=2"),
        *("--max-queued-requests", "50", "--quarantine-after", "1", "--poison-deaths", "1"),
    )

    def headrace(*arguments: str | Path) -> str:
        process = spawn(*arguments, HEADRACE_BROKER=ready["broker"], HEADRACE_POOL="vision")
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        return output

    [entry] = json.loads(headrace("consumers", "--json"))
    assert entry["pool"] == "vision"
    (tmp_path / "in.jsonl").write_text(chat_line(1) + "\n")
    store = ("--blobs", blobs, "--blob-threshold", "100")
    [request_id] = headrace("publish", tmp_path / "in.jsonl", *store).split()
    assert headrace("watch", request_id).strip()
    assert len([path for path in blobs.rglob("*") if path.is_file()]) == 1
    with Redis.from_url(ready["broker"]) as client:
        [(_, fields)] = client.xrange("headrace.results")
    assert json.loads(fields[b"body"])["response"]["status_code"] == 200


def test_what_up_is_told_reaches_the_settings_of_consumer_and_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stacks: list[StackOptions] = []
    settings: dict[str, Any] = {}

    def no_stack(options: StackOptions, say: object) -> None:
        stacks.append(options)
        raise Mistake("enough")

    async def run_consumer(given: ConsumerSettings) -> int:
        settings["consumer"] = given
        return 0

    async def run_gateway(given: GatewaySettings) -> int:
        settings["gateway"] = given
        return 0

    monkeypatch.setattr("headrace.cli.up.Stack", no_stack)
    monkeypatch.setattr("headrace.consumer.service.run_consumer", run_consumer)
    monkeypatch.setattr("headrace.cli.gateway.run_gateway", run_gateway)
    told = [
        *("--pool", "vision", "--lane-policy", "batch:size=5", "--lane-policy", "standard:timeout=1"),
        *(
            "--tenant-weight",
            "a=2",
            "--tenant-weight",
            "b=3",
            "--quarantine-after",
            "4",
            "--poison-deaths",
            "6",
        ),
        *("--max-queued-requests", "7", "--max-queued-tokens", "8", "--blob-threshold", "9"),
        *("--blobs", str(tmp_path), "--broker", "kafka", "--broker-option", "partitions=2"),
    ]
    assert execute(["up", *SIM, *told]) == 2
    [stack] = stacks
    assert (stack.broker, stack.broker_options, stack.blobs) == ("kafka", {"partitions": "2"}, str(tmp_path))
    monkeypatch.setenv("HEADRACE_BROKER", "unix:///none")
    assert execute(["consumer", *SIM, *stack.consumer_arguments]) == 0
    assert execute(["gateway", *stack.gateway_arguments]) == 0

    queue = {Lane.BATCH: QueuePolicy(size=5), Lane.STANDARD: QueuePolicy(timeout_ms=1000)}
    consumer, gateway = settings["consumer"], settings["gateway"]
    assert (consumer.pool, consumer.queue) == ("vision", queue)
    assert consumer.order.tenant_weights == {"a": 2.0, "b": 3.0}
    assert (consumer.watchdog.quarantine_after, consumer.watchdog.poison_deaths) == (4, 6)
    assert (gateway.pool, gateway.queue, gateway.blob_threshold) == ("vision", queue, 9)
    assert (gateway.limits.max_requests, gateway.limits.max_tokens) == (7, 8)
