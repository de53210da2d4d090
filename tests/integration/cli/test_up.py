"""`headrace up` from the first process to the last."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.integration.cli.conftest import PATIENCE_S, SIM, Spawn, alive, chat_line, eventually
from tests.support.kafka_server import require_kafka

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def up(spawn: Spawn, folder: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A stack that is healthy, and what its ready file says."""
    ready_file = folder / "ready.json"
    process = spawn(
        "up", *SIM, "--grpc-port", "0", "--data-dir", folder / "d", "--ready-file", ready_file, *options
    )
    eventually(lambda: ready_file.exists() or process.poll() is not None, "the ready file")
    assert process.poll() is None, process.communicate()
    return process, read(folder)


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "ready.json").read_text())
    return content


def pids(ready: dict[str, Any]) -> list[int]:
    return [pid for kind in ready["pids"].values() for pid in kind]


def ask(target: str, question: str) -> list[pb.StreamEvent]:
    request = pb.InferenceRequest(prompt=question, sampling_params=pb.SamplingParams(max_tokens=20, seed=1))
    with grpc.insecure_channel(target) as channel:
        return [
            response.event
            for response in InferenceStub(channel).Generate(pb.GenerateRequest(request=request))
        ]


def test_a_stack_comes_up_answers_heals_and_drains(spawn: Spawn, tmp_path: Path) -> None:
    process, ready = up(spawn, tmp_path, "--consumers", "2", "--lease", "1")
    assert [len(ready["pids"][kind]) for kind in ("gateway", "consumer", "engine")] == [1, 2, 2]
    assert all(map(alive, pids(ready)))
    target = ready["grpc"]
    with grpc.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING

    events = ask(target, "Hi")
    assert [events[0].WhichOneof("kind"), events[-1].WhichOneof("kind")] == ["accepted", "finished"]
    text = "".join(event.delta.text for event in events)
    assert events[-1].finished.usage.completion_tokens == 20

    example = [sys.executable, ROOT / "examples" / "stream.py", target, "Why is the sky blue?"]
    printed = subprocess.run(example, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert len(printed.strip()) > 10

    check_commands(spawn, tmp_path, ready, events[0].request_id, text)

    [gateway] = ready["pids"]["gateway"]
    for killed in (gateway, ready["pids"]["consumer"][0]):
        os.kill(killed, signal.SIGKILL)
    eventually(lambda: whole(tmp_path, without={gateway, killed}), "the stack to heal")
    assert read(tmp_path)["grpc"] == target, "a gateway comes back to its port"
    assert "".join(event.delta.text for event in ask(target, "Hi")) == text

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert not any(map(alive, pids(ready)))
    assert not (tmp_path / "ready.json").exists()


def whole(folder: Path, without: set[int]) -> bool:
    ready = read(folder)
    counts = [len(ready["pids"][kind]) for kind in ("gateway", "consumer", "engine")]
    return counts == [1, 2, 2] and not without & set(pids(ready))


def check_commands(spawn: Spawn, folder: Path, ready: dict[str, Any], request_id: str, text: str) -> None:
    """The small commands, against the running stack."""

    def headrace(*arguments: str | Path, code: int = 0) -> str:
        process = spawn(*arguments, HEADRACE_BROKER=ready["broker"])
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, errors
        return output

    assert headrace("watch", request_id) == text + "\n"
    assert headrace("watch", request_id, "--grpc", ready["grpc"]) == text + "\n"
    assert headrace("cancel", request_id, code=1) == "it had ended before\n"

    (folder / "in.jsonl").write_text(f"{chat_line(1)}\nnonsense\n{chat_line(2)}\n")
    published = headrace("publish", folder / "in.jsonl", code=1).split()
    assert len(published) == 2
    assert headrace("watch", published[1]).strip()

    (folder / "long.jsonl").write_text(chat_line(3, max_tokens=8000) + "\n")
    [long] = headrace("publish", folder / "long.jsonl", "--lane", "standard").split()
    assert headrace("cancel", long) == "cancelled\n"
    headrace("watch", long, code=1)

    stats = json.loads(headrace("queue", "--json"))
    kinds = {"lanes", "leases", "retrying", "consumers"}
    assert set(stats) == kinds | {"dead_letters", "pools", "strays"}
    assert stats["consumers"] == 2
    assert "interactive" in headrace("queue")

    [lost] = headrace("publish", folder / "long.jsonl", "--pool", "nobody").split()
    watching = spawn("watch", lost, HEADRACE_BROKER=ready["broker"])
    assert watching.stderr is not None
    assert "no consumer of the pool nobody is up" in watching.stderr.readline()
    assert headrace("cancel", lost) == "cancelled\n"
    watching.kill()


def test_a_broker_that_is_killed_again_while_it_starts_again_does_not_end_the_stack(
    spawn: Spawn, tmp_path: Path
) -> None:
    process, ready = up(spawn, tmp_path)
    killed: set[int] = set()

    def shot() -> bool:
        for pid in server_of(tmp_path / "d" / "broker") - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return len(killed) >= 4

    eventually(shot, "four brokers to be killed, each as soon as it is there")
    eventually(lambda: answers(ready["grpc"]), "an answer by way of a broker that lives")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "starting it again" in errors


def answers(target: str) -> bool:
    with suppress(grpc.RpcError):
        return bool("".join(event.delta.text for event in ask(target, "Hi")))
    return False


def server_of(folder: Path) -> set[int]:
    """The process id of the Valkey that has its data there, if it lives."""
    text = (folder / "valkey.lock").read_text()
    return {int(text)} if text and alive(int(text)) else set()


@pytest.mark.timeout(240)
def test_a_stack_on_a_kafka_of_its_own_answers_heals_and_drains(spawn: Spawn, tmp_path: Path) -> None:
    require_kafka()
    process, ready = up(spawn, tmp_path, "--broker", "kafka", "--broker-option", "partitions=2")
    assert ready["broker"].startswith("kafka://127.0.0.1:")
    text = "".join(event.delta.text for event in ask(ready["grpc"], "Hi"))
    assert text

    [kafka] = running_in(tmp_path / "d" / "kafka")
    os.kill(kafka, signal.SIGKILL)
    eventually(lambda: set(running_in(tmp_path / "d" / "kafka")) - {kafka}, "another Kafka")
    assert "".join(event.delta.text for event in ask(ready["grpc"], "Hi")) == text
    assert read(tmp_path)["broker"] == ready["broker"], "it comes back to its port"

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert not running_in(tmp_path / "d" / "kafka")


def running_in(folder: Path) -> list[int]:
    """Processes of Kafka with their data there."""
    settings = str(folder / "node-1" / "server.properties").encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if settings in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def test_children_do_not_outlive_a_killed_parent(spawn: Spawn, tmp_path: Path) -> None:
    process, ready = up(spawn, tmp_path)
    process.kill()
    eventually(lambda: not any(map(alive, pids(ready))), "the children to die")


def test_a_second_stop_signal_does_not_wait_for_what_runs(spawn: Spawn, tmp_path: Path) -> None:
    process, ready = up(spawn, tmp_path, "--grace", "60")
    sampling = pb.SamplingParams(max_tokens=8000)
    request = pb.GenerateRequest(request=pb.InferenceRequest(prompt="Hi", sampling_params=sampling))
    with grpc.insecure_channel(ready["grpc"]) as channel:
        stream = InferenceStub(channel).Generate(request)
        assert [next(stream).event.WhichOneof("kind") for _ in range(3)] == ["accepted", "started", "delta"]
        process.send_signal(signal.SIGINT)
        eventually(lambda: draining(channel), "the gateway to drain")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 130
    assert not any(map(alive, pids(ready)))


def draining(channel: grpc.Channel) -> bool:
    """No new calls are taken, or the gateway is gone."""
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
    except grpc.RpcError:
        return True
    return False


def test_a_model_that_does_not_exist_ends_the_stack_with_its_sentence(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(
        "up", "--model", tmp_path / "no-such-model", "--grpc-port", "0", "--data-dir", tmp_path / "d"
    )
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    sentences = [line for line in errors.splitlines() if line.startswith("headrace: ")]
    assert len(sentences) == 1
    assert "no-such-model" in sentences[0]
    assert "Traceback" not in errors


def test_a_port_that_is_taken_ends_the_stack_with_its_sentence(spawn: Spawn, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = str(occupant.getsockname()[1])
        process = spawn("up", *SIM, "--grpc-port", port, "--data-dir", tmp_path / "d")
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    [line] = errors.splitlines()  # and nothing of the consumer that was ended for it
    assert f"127.0.0.1:{port}" in line
    assert "Traceback" not in errors
