"""The engine's process: what it hears, what it tells, and how it ends."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import pytest

from headrace.gpu_engine.api import (
    Abort,
    Add,
    CountingEngine,
    EngineLost,
    FromEngine,
    Output,
    Ready,
    SamplingParams,
    Shutdown,
    Stepped,
    ToEngine,
    Unusable,
)
from headrace.gpu_engine.codec import decode_command, decode_message, encode_message
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.host import EngineHost, run_engine, serve
from headrace.gpu_engine.sim import SimEngine, expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer
from tests.unit.engine_host.fakes import GREEDY, request, sim_engine, tokens_of

PATIENCE_S = 30


class Ends:
    """A host under test and what its consumer holds."""

    def __init__(self, engine: CountingEngine, idle_s: float = PATIENCE_S) -> None:
        self.mine, theirs = multiprocessing.Pipe(duplex=True)
        self.host = EngineHost(engine, theirs, idle_s)

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.mine.send_bytes(encode_message(message))

    def receive(self) -> Stepped:
        message = receive(self.mine)
        assert isinstance(message, Stepped)
        return message


def receive(connection: Connection[Any, Any]) -> FromEngine:
    assert connection.poll(PATIENCE_S), "the engine says nothing"
    return decode_message(connection.recv_bytes())


# ------------------------------------------------------------------------------------------- the messages


@pytest.mark.parametrize(
    "message",
    [
        Add(request=request("r", params=SamplingParams(stop=("\u00e9", "\n"), seed=-5), output_ids=[1, 2])),
        Abort(id="r"),
        Shutdown(),
    ],
)
def test_commands_survive_the_pipe(message: ToEngine) -> None:
    assert decode_command(encode_message(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(info=sim_engine().info),
        Unusable(message="no such model"),
        Stepped(step=7, outputs=[Output(id="r", token_ids=[1], text="\u00e9")], running=1, waiting=2),
    ],
)
def test_messages_survive_the_pipe(message: FromEngine) -> None:
    assert decode_message(encode_message(message)) == message


# ------------------------------------------------------------------------------------------------ the loop


def test_all_that_has_arrived_is_heard_before_the_next_step() -> None:
    ends = Ends(sim_engine(batch=2, first_token_ms=0, tokens=2))
    ends.send(*(Add(request=request(request_id)) for request_id in "abc"), Abort(id="b"))
    assert ends.host.hear()
    assert ends.host.step_and_tell()
    stepped = ends.receive()
    assert (stepped.step, stepped.running, stepped.waiting) == (1, 2, 0)
    assert {output.id: output.finish_reason for output in stepped.outputs} == {
        "a": None,
        "b": "abort",
        "c": None,
    }


def test_a_refused_request_is_told_as_an_output_with_the_error() -> None:
    ends = Ends(sim_engine(first_token_ms=500, step_ms=250))
    ends.send(Add(request=request("r", "")), Add(request=request("good")))
    assert ends.host.hear()
    ends.host.step_and_tell()
    [output] = ends.receive().outputs
    assert output.id == "r"
    assert output.error is not None
    assert output.error.code == "invalid_request"
    ends.host.step_and_tell()
    assert [output.id for output in ends.receive().outputs] == ["good"]


def test_an_idle_engine_tells_that_all_is_well_without_counting_a_step() -> None:
    ends = Ends(sim_engine(), idle_s=0.001)
    for _ in range(2):
        assert ends.host.hear()
        assert ends.host.step_and_tell()
        assert ends.receive() == Stepped(step=0, outputs=[])


def test_a_busy_engine_does_not_wait_for_messages() -> None:
    ends = Ends(sim_engine(first_token_ms=0, tokens=5))
    ends.send(Add(request=request("r")))
    told: list[Output] = []
    while not told or told[-1].finish_reason is None:
        assert ends.host.hear()  # a wait of PATIENCE_S would exceed the time limit of the test
        assert ends.host.step_and_tell()
        told += ends.receive().outputs
    assert tokens_of(told, "r") == expected_answer(SimTokenizer().encode("prompt"), GREEDY, 5)


def test_shutdown_and_a_closed_connection_end_the_loop() -> None:
    ends = Ends(sim_engine())
    ends.send(Shutdown())
    assert not ends.host.hear()
    ends = Ends(sim_engine())
    ends.send(Add(request=request("r")))
    ends.mine.close()
    assert not ends.host.hear()
    assert not ends.host.step_and_tell()


def test_an_exception_in_a_step_is_not_swallowed() -> None:
    class Broken(SimEngine):
        def step(self) -> list[Output]:
            raise RuntimeError("broken")

    ends = Ends(Broken(EngineConfig(engine="sim")))
    ends.send(Add(request=request("r")))
    assert ends.host.hear()
    with pytest.raises(RuntimeError, match="broken"):
        ends.host.step_and_tell()


def test_an_engine_that_is_lost_ends_its_process_with_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    class Lost(SimEngine):
        def step(self) -> list[Output]:
            raise EngineLost("A rank is gone.")

    mine, theirs = multiprocessing.Pipe(duplex=True)
    mine.send_bytes(encode_message(Add(request=request("r"))))
    with pytest.raises(SystemExit) as ended:
        serve(Lost(EngineConfig(engine="sim")), theirs)
    assert ended.value.code == 1
    assert capfd.readouterr().err == "A rank is gone.\n"


# --------------------------------------------------------------------------------------------- the process


class Child:
    """A spawned engine process."""

    def __init__(self, **config: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=True)
        data = EngineConfig.model_validate(config).model_dump_json().encode()
        self.process: SpawnProcess = context.Process(target=run_engine, args=(data, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, message: ToEngine) -> None:
        self.connection.send_bytes(encode_message(message))

    def exit_code(self) -> int | None:
        self.process.join(PATIENCE_S)
        return self.process.exitcode


@pytest.fixture
def sim_child() -> Iterator[Child]:
    child = Child(engine="sim", sim={"first_token_ms": 1, "step_ms": 1, "crash_after_steps": 200})
    yield child
    child.process.kill()


@pytest.mark.slow
def test_the_process_answers_ignores_ctrl_c_and_ends_when_told(sim_child: Child) -> None:
    ready = receive(sim_child.connection)
    assert isinstance(ready, Ready)
    assert ready.info.model == "sim"
    pid = sim_child.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    sim_child.send(Add(request=request("r", params=SamplingParams(temperature=0.0, max_tokens=5))))
    told: list[Output] = []
    while not told or told[-1].finish_reason is None:
        stepped = receive(sim_child.connection)
        assert isinstance(stepped, Stepped)
        told += stepped.outputs
    assert tokens_of(told, "r") == expected_answer(SimTokenizer().encode("prompt"), GREEDY, 5)
    sim_child.send(Shutdown())
    assert sim_child.exit_code() == 0


@pytest.mark.slow
def test_the_process_ends_when_its_consumer_closes_the_connection(sim_child: Child) -> None:
    assert isinstance(receive(sim_child.connection), Ready)
    sim_child.connection.close()
    assert sim_child.exit_code() == 0


@pytest.mark.slow
def test_a_crash_on_purpose_ends_the_process_with_a_failure(sim_child: Child) -> None:
    assert isinstance(receive(sim_child.connection), Ready)
    sim_child.send(Add(request=request("r", params=SamplingParams(max_tokens=1000))))
    assert sim_child.exit_code() == 1


@pytest.mark.slow
def test_starting_a_simulated_engine_waits_for_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, headrace.gpu_engine.host as host;"
        "host.build_engine(host.EngineConfig(engine='sim'));"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
def test_a_missing_model_makes_the_engine_unusable_with_a_sentence() -> None:
    child = Child(model="/no/such/model")
    message = receive(child.connection)
    assert isinstance(message, Unusable)
    assert "/no/such/model" in message.message
    assert child.exit_code() == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the closed connection ends the process")
def test_the_process_dies_with_a_consumer_that_is_killed() -> None:
    program = textwrap.dedent(
        """
        import multiprocessing, time
        from headrace.gpu_engine.config import EngineConfig
        from headrace.gpu_engine.host import run_engine

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            mine, theirs = context.Pipe()
            data = EngineConfig(engine="sim").model_dump_json().encode()
            child = context.Process(target=run_engine, args=(data, theirs))
            child.start()
            mine.recv_bytes()
            print(child.pid, flush=True)
            time.sleep(600)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        engine = os.pidfd_open(int(consumer.stdout.readline()))
        consumer.kill()
        readable, _, _ = select.select([engine], [], [], PATIENCE_S)
        os.close(engine)
    assert readable, "the engine outlived its consumer"
