"""Faults, one scenario each, the same on every broker. `Scenario.inject` runs while answers stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.broker.connect import connect
from headrace.broker.events import Started
from headrace.broker.message import Lane, RequestRef
from tests.faults.brokers import Kafka, Kind, Valkey
from tests.faults.checker.record import COMPLETE
from tests.faults.measures import interruptions, percentile_95
from tests.faults.raw import completion_line, publish
from tests.faults.run import Run
from tests.faults.stack import alive, engine_of, pid_of

Inject: TypeAlias = Callable[[Run], Awaitable[None]]
STEP_MS, FIRST_TOKEN_MS = 10, 20
_IN_COMPANY = 2  # deaths after which a request is tried alone


@dataclass(frozen=True, slots=True)
class Scenario:
    """`brokers`: where it can be. `selected`: where it is one for `make test`; all run in `make chaos`.
    `proxied`: consumers and gateways reach the broker through our proxy. `breaks`: see `Run`."""

    name: str
    inject: Inject
    brokers: tuple[Kind, ...] = ("redis", "kafka")
    selected: tuple[Kind, ...] = ("redis", "kafka")
    options: tuple[str, ...] = ()
    consumers: int = 2
    proxied: bool = False
    breaks: bool = False
    first_token_ms: int = FIRST_TOKEN_MS
    environment: dict[str, str] = field(default_factory=dict)


def _victim(run: Run, kind: str) -> int | None:
    victims = run.stack.pids(kind)
    return run.rng.choice(victims) if victims else None


def _busy(run: Run) -> int | None:
    """The consumer with the most answers under way that anybody watches: one pull can take all there are."""
    owners = Counter(pid_of(reader.owner) for reader in run.readers if reader.owner and not reader.ended)
    alive_now = [pid for pid, _ in owners.most_common() if pid is not None and alive(pid)]
    return alive_now[0] if alive_now else _victim(run, "consumer")


async def _until(holds: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    """Waits for something that another process does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not holds():
        assert loop.time() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.05)


# ------------------------------------------------------------------------------------------ processes


async def consumers_killed(run: Run) -> None:
    """SIGKILL at random instants; the interrupted go on elsewhere within a lease and two seconds."""
    async with run.load(streams=10):
        for _ in range(3 * run.rounds):
            await _until(lambda: len(run.stack.pids("consumer")) == 2, "both consumers", 60)
            await asyncio.sleep(run.rng.uniform(0.3, 1.2))
            if victim := _busy(run):
                run.stack.kill(victim)
            await asyncio.sleep(run.lease_s)
        await asyncio.sleep(run.lease_s)
    run.record.transcripts = [reader.transcript() for reader in run.readers]
    found = interruptions(run.record.transcripts, run.stack.kills, run.step_s)
    assert found, "no answer was interrupted: the kills proved nothing"
    late = percentile_95([each.wait_s for each in found])
    assert late <= run.lease_s + 2, f"p95 from SIGKILL to the next visible token: {late:.2f} s"


async def consumers_killed_while_they_settle(run: Run) -> None:
    """Short answers, many of them: on Kafka a transaction is open most of the time."""
    async with run.load(streams=12, tokens=(1, 3)):
        for _ in range(3 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.5, 1.5))
            if victim := _victim(run, "consumer"):
                run.stack.kill(victim)


async def consumers_frozen(run: Run) -> None:
    """Past its lease and awake again: what it still says is void, its settlements are refused."""
    async with run.load(streams=8):
        for _ in range(2 * run.rounds):
            await asyncio.sleep(0.6)
            if victim := _busy(run):
                run.stack.freeze(victim)
                await asyncio.sleep(2 * run.lease_s + run.rng.uniform(0, 0.5))
                run.stack.thaw(victim)
    resumed = sum(event.kept > 0 for reader in run.readers for event in reader.shown)
    assert resumed, "no answer was taken over: the freeze proved nothing"


async def engines_killed(run: Run) -> None:
    async with run.load(streams=8):
        for _ in range(4 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.4, 1.2))
            if victim := _victim(run, "engine"):
                run.stack.kill(victim)


async def gateways_killed(run: Run) -> None:
    """Readers re-attach, to any gateway, with the last cursor."""
    ready = run.stack.folder / "gateway-2.json"
    run.stack.start_beside(
        *("gateway", "--broker", run.stack.broker, "--prefix", run.prefix, "--grpc-port", "0"),
        *("--ready-file", str(ready)),
    )
    await _until(ready.exists, "a second gateway")
    run.more_gateways.append(_target(ready.read_text()))
    async with run.load(streams=8):
        for _ in range(2 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.5, 1.2))
            if victim := _victim(run, "gateway"):
                run.stack.kill(victim)
                await asyncio.sleep(0.2)
    assert any(reader.attachments > 1 for reader in run.readers), "no reader had to come back"


def _target(ready: str) -> str:
    return str(json.loads(ready)["grpc"])


def _start_consumer(run: Run, *options: str) -> subprocess.Popen[bytes]:
    return run.stack.start_beside(
        *("consumer", "--broker", run.stack.broker, "--prefix", run.prefix, "--lease", str(run.lease_s)),
        *("--grace", "0", "--engine", "sim", "--sim-step-ms", str(STEP_MS)),
        *("--sim-first-token-ms", str(FIRST_TOKEN_MS), *options),
    )


async def static_twin(run: Run) -> None:
    """A pod is frozen and replaced under the same name: the new one goes on in its place. When the old one
    wakes, the group fences one of them (the old one, unless its session was over and it joined anew); that
    one shows nothing any more and ends non-zero, and the other one serves."""
    named = ("--broker-option", "group_instance_id=pod-1")
    ready = run.stack.folder / "pod.json"
    first = _start_consumer(run, *named, "--ready-file", str(ready))
    await _until(ready.exists, "the first pod", 60)
    async with run.load(streams=8):
        await _until(lambda: any(pid_of(r.owner) == first.pid for r in run.readers), "work for the first pod")
        run.stack.freeze(first.pid)
        second = _start_consumer(run, *named)
        await asyncio.sleep(2 * run.lease_s + 3)
        run.stack.thaw(first.pid)
        await _until(lambda: _one_ended(first, second), "a fence")
        await asyncio.sleep(1)
    statuses = [pod.returncode for pod in (first, second) if pod.poll() is not None]
    assert len(statuses) == 1, "both pods ended, where one was due"
    assert statuses[0] != 0, "the fenced pod ended as if all was well"


def _one_ended(first: subprocess.Popen[bytes], second: subprocess.Popen[bytes]) -> bool:
    return first.poll() is not None or second.poll() is not None


async def consumers_come_and_go(run: Run) -> None:
    """A third one joins under load, and leaves in order: what is not moved is not disturbed, and of what is
    moved no token is lost."""
    async with run.load(streams=8):
        await asyncio.sleep(0.5)
        for number in range(run.rounds):
            ready = run.stack.folder / f"third-{number}.json"
            third = _start_consumer(run, "--ready-file", str(ready))
            await _until(ready.exists, "the third consumer", 60)
            await asyncio.sleep(1.5)
            third.terminate()
            status = await asyncio.to_thread(third.wait, 20)
            assert status == 0, f"a drain that ended with status {status}"
    assert not any(event.kind == "restarted" for reader in run.readers for event in reader.shown)


async def everything_killed(run: Run) -> None:
    """All kinds, at random, until so many are dead."""
    async with run.load(streams=12):
        for _ in range(6 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.2, 1.6))
            if victim := _victim(run, run.rng.choice(("consumer", "consumer", "engine", "gateway"))):
                run.stack.kill(victim)


# ---------------------------------------------------------------------------------------- the broker


async def broker_killed(run: Run) -> None:
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(run.rng.uniform(0.8, 1.5))
            await asyncio.to_thread(run.server.kill)
            await asyncio.sleep(run.rng.uniform(0, 0.6))
            await asyncio.to_thread(run.server.start)
        await asyncio.sleep(1)


async def broker_restarted(run: Run) -> None:
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(run.rng.uniform(0.8, 1.5))
            await asyncio.to_thread(run.server.stop)
            await asyncio.to_thread(run.server.start)
        await asyncio.sleep(1)


async def one_of_three_nodes_killed(run: Run) -> None:
    assert isinstance(run.server, Kafka)
    async with run.load(streams=6):
        for number in range(1, run.rounds + 1):
            await asyncio.sleep(1.5)
            node = 1 + (number % 3)
            await asyncio.to_thread(run.server.kill_node, node)
            await asyncio.sleep(8)
            await asyncio.to_thread(run.server.start_node, node)
        await asyncio.sleep(1)


async def disk_full(run: Run) -> None:
    """Writes fail, so nothing is acknowledged that is not there; it goes on when there is room again."""
    assert isinstance(run.server, Valkey)
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(0.8)
            run.server.fill_disk(room=run.rng.randrange(1, 20_000))
            full_until = asyncio.get_running_loop().time() + 2.5
            deaths = 0
            while asyncio.get_running_loop().time() < full_until:
                if not run.server.alive:
                    deaths += 1
                    await asyncio.to_thread(run.server.start)
                    run.server.fill_disk(room=run.rng.randrange(1, 2_000))
                await asyncio.sleep(0.05)
            assert deaths, "the disk was never full"
            await asyncio.to_thread(run.server.kill)  # it may be dying just now: then it would not be started
            await asyncio.to_thread(run.server.start)
    run.notes.append("the disk was full")


# ----------------------------------------------------------------------------------------- the network


async def replies_cut(run: Run) -> None:
    """The write has happened, its reply is lost: whoever wrote must find out, and not do it twice."""
    assert run.proxy is not None
    proxy = run.proxy
    async with run.load(streams=8):
        for _ in range(8 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.1, 0.6))
            proxy.cut_replies(lambda: run.rng.choice((0, 0, 1, 5, 30, 200)))
        await asyncio.sleep(0.5)
    assert proxy.cuts, "no connection was cut"
    run.notes.append(f"{proxy.cuts} connections cut")


async def writes_reordered(run: Run) -> None:
    """Every chunk takes its own time, so what goes over several connections arrives in another order."""
    assert run.proxy is not None
    run.proxy.lag_s = (0.0, 0.04)
    async with run.load(streams=6, tokens=(20, 60)):
        for _ in range(run.rounds):
            await asyncio.sleep(1.5)
            if victim := _victim(run, "consumer"):
                run.stack.kill(victim)
        await asyncio.sleep(1.5)
    run.proxy.lag_s = (0.0, 0.0)


async def network_silent(run: Run) -> None:
    """Bytes vanish and nobody is told, for longer than a lease."""
    assert run.proxy is not None
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(0.8)
            run.proxy.swallow = True
            await asyncio.sleep(1.5 * run.lease_s)
            run.proxy.cut()
            run.proxy.swallow = False
        await asyncio.sleep(1)


# ----------------------------------------------------------------------------------- odd publishers


async def published_twice(run: Run) -> None:
    """Re-sends of the same id: at once, while it runs, after its end, out of order; and an id that another
    body has. One request, one result; the other body is dead-lettered and touches nothing."""
    async with run.load(streams=4):
        again = dict[str, str]()
        for _ in range(10 * run.rounds):
            accepted = await run.publish(tokens=run.rng.choice((2, 40)))
            assert accepted.body is not None
            again = {"request-id": accepted.request_id}
            for _ in range(run.rng.randint(1, 3)):
                await asyncio.sleep(run.rng.choice((0, 0, 0.1, 0.5)))
                await publish(run.raw, accepted.lane, accepted.body, again)
        other = completion_line("other", "another prompt", 5, 1)
        await run.publish_rubbish(other, again)
        await run.publish_rubbish(b"\xff\xfe no message", {"deadline": "tomorrow"}, Lane.STANDARD)


async def readers_slow_or_gone(run: Run) -> None:
    """The engine never waits for a reader; one that is slow sees every token, late."""
    quick: list[float] = []

    async def gone() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.8):
                await run.read(tokens=600, lane=Lane.STANDARD)

    loop = asyncio.get_running_loop()
    async with run.load(streams=3), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(run.read(tokens=400, patience_s=0.01))
            tasks.create_task(gone())
        await asyncio.sleep(1)
        began = loop.time()
        await run.read(tokens=50, lane=Lane.INTERACTIVE)
        quick.append(loop.time() - began)
    assert max(quick) < 10, "a reader waited for slow ones"


# ---------------------------------------------------------------------------------------- the engine


async def poison(run: Run) -> None:
    """A request that kills its engine each time, over several consumers: dead-lettered after some deaths
    alone; its innocent neighbours go on. The engine is killed from outside once the request is in it."""
    broker = await connect(run.server.url, prefix=run.prefix)
    try:
        async with run.load(streams=4):
            await asyncio.sleep(0.5)
            bad = await run.publish(tokens=200, named=True, ends=("poisoned",), stream="true")
            deaths = 0
            async with asyncio.timeout(45):
                async for logged in broker.watch(RequestRef(bad.request_id)):
                    if isinstance(logged.event, Started) and await _strike(run, logged.event):
                        deaths += 1
    finally:
        await broker.close()
    run.notes.append(f"poison was buried after {deaths} deaths")


async def _strike(run: Run, started: Started) -> bool:
    """Kills the engine that has just been given the request. One that waits for its turn in quarantine is in
    no engine: a kill would hit another."""
    owner = pid_of(started.consumer)
    if owner is None or (started.deaths >= _IN_COMPANY and not started.alone):
        return False
    await _until(lambda: not alive(owner) or engine_of(owner) in run.stack.pids("engine"), "an engine")
    await asyncio.sleep(0.1)
    engine = engine_of(owner)
    if engine is not None:
        run.stack.kill(engine)
    return engine is not None


async def engine_raises(run: Run) -> None:
    """Every seventh request of each engine fails; the failure is told, once, and nothing else suffers."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(40 * run.rounds):
            tasks.create_task(run.publish(tokens=30, ends=(*COMPLETE, "internal_error")))
            await asyncio.sleep(0.02)


async def engine_dies_by_itself(run: Run) -> None:
    """In a step of its own, again and again (`--sim-crash-after-steps`)."""
    async with run.load(streams=6):
        await asyncio.sleep(5 * run.rounds)


async def engine_hangs(run: Run) -> None:
    """SIGSTOP of the engine alone: its consumer goes on renewing leases, notices, and starts another one."""
    async with run.load(streams=6):
        await asyncio.sleep(0.8)
        if victim := _victim(run, "engine"):
            run.stack.freeze(victim)
            await _until(lambda: not alive(victim), "the watchdog to end a hung engine", 90)


# ------------------------------------------------------------------------------------- time, deadlines


async def clock_jumps(run: Run) -> None:
    """The wall clock of both consumers is set forward and back by hours. Leases and deadlines go by the
    broker's clock: nothing expires, nothing is taken over that is not lost."""
    clock = run.stack.folder / "clock"
    async with run.load(streams=6):
        for offset in (3 * 3600, -3 * 3600, 0) * run.rounds:
            clock.with_suffix(".new").write_text(str(offset))
            clock.with_suffix(".new").rename(clock)
            await asyncio.sleep(0.4)
            await run.read(tokens=30, deadline_s=30)
            await asyncio.sleep(0.6)


async def cancelled_and_expired(run: Run) -> None:
    """In every state: while it waits, while it runs, after its end."""
    broker = await connect(run.server.url, prefix=run.prefix)
    try:
        async with run.load(streams=4), asyncio.TaskGroup() as tasks:
            for number in range(6 * run.rounds):
                either = (*COMPLETE, "cancelled")
                accepted = await run.publish(tokens=60, ends=either)
                await asyncio.sleep(run.rng.choice((0, 0.05, 0.3, 1)))
                await broker.cancel(RequestRef(accepted.request_id))
                ends = (*COMPLETE, "expired")
                tasks.create_task(
                    run.read(tokens=20 + 60 * (number % 2), ends=ends, deadline_s=run.rng.uniform(0.3, 1))
                )
    finally:
        await broker.close()


SCENARIOS = (
    Scenario("consumers_killed", consumers_killed, selected=("redis",)),
    Scenario("consumers_killed_while_they_settle", consumers_killed_while_they_settle, selected=("kafka",)),
    Scenario("consumers_frozen", consumers_frozen),
    Scenario("engines_killed", engines_killed, selected=()),
    Scenario("gateways_killed", gateways_killed, selected=("redis",)),
    Scenario("consumers_come_and_go", consumers_come_and_go),
    Scenario("static_twin", static_twin, ("kafka",), ("kafka",), consumers=1),
    Scenario("everything_killed", everything_killed, selected=()),
    Scenario("broker_killed", broker_killed, breaks=True),
    Scenario("broker_restarted", broker_restarted, selected=(), breaks=True),
    Scenario("disk_full", disk_full, ("redis",), ("redis",), breaks=True),
    Scenario("replies_cut", replies_cut, proxied=True),
    Scenario("writes_reordered", writes_reordered, selected=(), proxied=True),
    Scenario("network_silent", network_silent, selected=(), proxied=True),
    Scenario("published_twice", published_twice),
    Scenario("readers_slow_or_gone", readers_slow_or_gone, selected=()),
    Scenario("poison", poison, first_token_ms=600),
    Scenario("engine_raises", engine_raises, selected=(), options=("--sim-fail-every", "7"), consumers=1),
    Scenario(
        *("engine_dies_by_itself", engine_dies_by_itself),
        selected=(),
        options=("--sim-crash-after-steps", "150"),
    ),
    Scenario("engine_hangs", engine_hangs, selected=()),
    Scenario("clock_jumps", clock_jumps, selected=("redis",)),
    Scenario("cancelled_and_expired", cancelled_and_expired, selected=("redis",)),
)
THREE_NODES = Scenario(
    "one_of_three_nodes_killed", one_of_three_nodes_killed, ("kafka",), ("kafka",), breaks=True
)
