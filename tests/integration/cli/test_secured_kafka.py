"""A Kafka that asks for a password: the options reach every process, and no command line shows them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.embedded.kafka import EmbeddedKafka
from headrace.cli.errors import ExitCode
from tests.integration.cli.conftest import PATIENCE_S, SIM, Spawn, chat_line, eventually
from tests.support.kafka_server import running_kafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PASSWORD = "se,cret=\\1"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SASL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{LOGIN} username="node" password="node" user_node="node" user_me="{PASSWORD}";'.replace(
            "\\", "\\\\"
        )
    ),
}
OPTIONS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "me",
    "sasl_plain_password": PASSWORD.replace("\\", "\\\\").replace(",", "\\,"),
    "partitions": "2",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with running_kafka(tmp_path_factory.mktemp("secured"), properties=SASL) as server:
        yield server


def variable(**changes: str) -> str:
    return ",".join(f"{name}={value}" for name, value in {**OPTIONS, **changes}.items())


def test_a_service_with_a_password_answers_and_does_not_show_it(
    secured: EmbeddedKafka, spawn: Spawn, tmp_path: Path
) -> None:
    environment = {"HEADRACE_BROKER_OPTIONS": variable(), "HEADRACE_BROKER": secured.url}
    ready_file = tmp_path / "ready.json"
    places = ("--data-dir", tmp_path / "d", "--ready-file", ready_file, "--grpc-port", "0")
    stack = spawn("up", *SIM, "--broker", secured.url, *places, **environment)
    eventually(lambda: ready_file.exists() or stack.poll() is not None, "the ready file")
    assert stack.poll() is None, stack.communicate()

    (tmp_path / "in.jsonl").write_text(chat_line(1) + "\n")
    [request_id] = output(spawn("publish", tmp_path / "in.jsonl", **environment)).split()
    assert output(spawn("watch", request_id, **environment)).strip()

    pids = [pid for kind in json.loads(ready_file.read_text())["pids"].values() for pid in kind]
    for pid in [stack.pid, *pids]:
        assert b"cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "cret" not in ready_file.read_text()
    stack.terminate()
    out, errors = stack.communicate(timeout=PATIENCE_S)
    assert stack.returncode == 0, errors
    assert "cret" not in out + errors


@pytest.mark.parametrize(
    ("command", "status"),
    [(("queue",), ExitCode.COULD_NOT_RUN), (("gateway", "--grpc-port", "0"), ExitCode.UNREACHABLE)],
)
def test_a_wrong_password_is_one_sentence_without_it(
    secured: EmbeddedKafka, spawn: Spawn, command: tuple[str, ...], status: ExitCode
) -> None:
    """kafka-python cannot tell it from a node that is away, so a service may be started again."""
    process = spawn(
        *command,
        HEADRACE_BROKER=secured.url,
        HEADRACE_BROKER_OPTIONS=variable(sasl_plain_password="mistaken"),
    )
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, errors
    [line] = errors.strip().splitlines()
    assert line.startswith("headrace: ")
    assert "login" in line
    assert "mistaken" not in out + errors


def output(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return out
