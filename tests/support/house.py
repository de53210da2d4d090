"""A running service with neighbours: good requests beside bad ones, which are to be answered, each once."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.support.bad_messages import Case, good
from tests.support.doors import KafkaDoor, RedisDoor, door
from tests.support.outside_clients import PATIENCE_S, eventually, service


class House:
    """A running service, its broker as others have it, and its gateway."""

    def __init__(self, ready: dict[str, Any], door: RedisDoor | KafkaDoor) -> None:
        self.door, self.url = door, ready["broker"]
        self._channel = grpc.insecure_channel(ready["grpc"], [("grpc.max_send_message_length", -1)])
        self._stub = InferenceStub(self._channel)
        self._asked: set[str] = set()

    def publish(self, name: str) -> None:
        """A good request, which is to be answered."""
        self.door.publish("standard", good(name), {})
        self._asked.add(name)

    def publish_with_neighbours(self, case: Case) -> None:
        self.publish(f"before-{case.name}")
        self.door.publish("standard", case.body, case.fields)
        self.publish(f"behind-{case.name}")

    def expect(self, *names: str) -> None:
        self._asked |= set(names)

    def settle(self) -> None:
        """Returns once all good requests have their answer, each one."""
        eventually(lambda: self._asked <= {line["custom_id"] for line in self.results()}, "the neighbours")
        answered = self.answered()
        assert {name: answered[name] for name in self._asked if answered[name] != 1} == {}

    def come_to_rest(self) -> None:
        """The same, once nothing waits or runs any more: what has not come will never come."""
        eventually(self._idle, "an idle service")
        self.settle()

    def results(self) -> list[dict[str, Any]]:
        return self.door.lines(f"{self.door.prefix}.results")

    def answered(self) -> Counter[str]:
        """How often each was answered with success."""
        lines = [line for line in self.results() if line["response"] and line["error"] is None]
        return Counter(line["custom_id"] for line in lines if line["response"]["status_code"] == 200)

    def generate(self, **fields: Any) -> tuple[str, str]:
        """Status and words of the gateway for a request of this kind, OK where it is answered to its end."""
        request = pb.InferenceRequest(**fields)
        request.sampling_params.max_tokens = 2
        try:
            *_, last = self._stub.Generate(pb.GenerateRequest(request=request), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        assert last.event.HasField("finished"), last
        return "OK", ""

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--broker", self.url, "--prefix", self.door.prefix)
        command = [sys.executable, "-m", "headrace.cli.main", *arguments, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def shown(self) -> dict[str, Any]:
        """What the queue holds, as `headrace queue` says it."""
        shown: dict[str, Any] = json.loads(self.command("queue", "--json").stdout)
        return shown

    def close(self) -> None:
        self._channel.close()

    def _idle(self) -> bool:
        shown = self.shown()
        busy = [lane for lane in shown["lanes"].values() if lane["waiting"] or lane["leased"]]
        return not busy and not shown["retrying"]


@contextmanager
def open_house(request: pytest.FixtureRequest, folder: Path, *options: str) -> Iterator[House]:
    """For a fixture whose parameter is the broker's kind; comes to rest in the end."""
    prefix = f"b{uuid.uuid4().hex[:8]}"
    options += ("--prefix", prefix)
    if request.param == "kafka":
        url = request.getfixturevalue("kafka_url")
        options += ("--broker", url, "--broker-option", "partitions=2")
    with service(folder, *options) as ready, door(ready["broker"], prefix) as way:
        house = House(ready, way)
        yield house
        house.come_to_rest()
        house.close()
