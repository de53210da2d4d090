"""Random kills while answers stream: `python -m tests.faults.chaos --kills 100 [--seed N]`.

Two consumers on the simulated engine; readers keep `STREAMS` answers in flight over gRPC, and a publisher
that is no client of ours adds lines with XADD and reads `headrace.results`. Meanwhile consumers and engine
processes are killed with SIGKILL at random instants. In the end every answer is complete, token for token
the one that an undisturbed run gives, every line has exactly one result, and nothing is left leased.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from headrace.gpu_engine.text.sim import SimTokenizer
from tests.faults.readers import Seen, expected_tokens, watch_answer
from tests.faults.stack import Stack, running_stack

STREAMS = 12
TOKENS = (60, 240)
LEASE_S = 1.0
ANSWER_TIMEOUT_MS = 60_000
SIM = ("--engine", "sim", "--sim-first-token-ms", "20", "--sim-step-ms", "10")


@dataclass
class Report:
    """What a run saw. `resumed`: answers that were taken over in the middle and went on unbroken."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    answers: list[Seen] = field(default_factory=list)
    lines: int = 0

    @property
    def resumed(self) -> int:
        return sum(seen.resumed > 0 and seen.restarted == 0 for seen in self.answers)

    @property
    def restarted(self) -> int:
        return sum(seen.restarted for seen in self.answers)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {sum(self.kills.values())} kills {dict(self.kills)}; "
            f"{len(self.answers)} streams ({self.resumed} resumed in mid-answer, {self.restarted} restarted) "
            f"and {self.lines} result lines, each complete and shown once"
        )


async def chaos(stack: Stack, seed: int, kills: int) -> Report:
    """Runs readers, line publisher and killer side by side; raises on anything a user should not see."""
    report, over = Report(seed), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(STREAMS):
            tasks.create_task(_keep_reading(stack, random.Random(f"{seed} {number}"), report, over))
        tasks.create_task(_publish_lines(stack, random.Random(f"{seed} lines"), report, over))
        await _keep_killing(stack, random.Random(f"{seed} kills"), kills, report)
        over.set()
    await _assert_nothing_left(stack)
    return report


async def _keep_killing(stack: Stack, rng: random.Random, kills: int, report: Report) -> None:
    while sum(report.kills.values()) < kills:
        await asyncio.sleep(rng.uniform(0.2, 1.6))
        kind = rng.choice(("consumer", "engine"))
        if victims := stack.pids(kind):
            stack.kill(rng.choice(victims))
            report.kills[kind] += 1


async def _keep_reading(stack: Stack, rng: random.Random, report: Report, over: asyncio.Event) -> None:
    while not over.is_set():
        prompt = f"Tell me story {rng.getrandbits(32)}"
        tokens, seed = rng.randint(*TOKENS), rng.getrandbits(32)
        report.answers.append(await watch_answer(stack.grpc, prompt, tokens, seed))


async def _publish_lines(stack: Stack, rng: random.Random, report: Report, over: asyncio.Event) -> None:
    redis = Redis.from_url(stack.broker, socket_timeout=2 * ANSWER_TIMEOUT_MS / 1000, protocol=2)
    expected: dict[str, str] = {}
    while not over.is_set():
        custom_id, seed, tokens = f"line-{len(expected)}", rng.getrandbits(32), rng.randint(20, 80)
        body = {"prompt": custom_id, "max_tokens": tokens, "seed": seed, "ignore_eos": True}
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
        await redis.xadd("headrace.requests.batch", {"body": json.dumps(line)})
        expected[custom_id] = SimTokenizer().decode(expected_tokens(custom_id, tokens, seed))
        await asyncio.sleep(rng.uniform(0.1, 0.5))
    lines = await _result_lines(redis, len(expected))
    ids = [line["id"] for line in lines]
    assert len(set(ids)) == len(ids), "a request has two result lines"
    texts = {line["custom_id"]: _text(line) for line in lines if line["custom_id"]}
    assert texts == expected, "result lines differ from what was published"
    report.lines = len(lines)
    await redis.aclose()


def _text(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["text"])


async def _result_lines(redis: Redis, count: int) -> list[dict[str, Any]]:
    """All result lines, those of the streams too, as soon as `count` have a custom_id and no more come."""
    lines: list[dict[str, Any]] = []
    cursor, block_ms = b"0", ANSWER_TIMEOUT_MS
    while entries := await _entries_behind(redis, cursor, block_ms):
        cursor = entries[-1][0]
        lines += [json.loads(fields[b"body"]) for _, fields in entries]
        complete = sum(line["custom_id"] is not None for line in lines) >= count
        block_ms = int(3000 * LEASE_S) if complete else ANSWER_TIMEOUT_MS
    return lines


async def _entries_behind(
    redis: Redis, cursor: bytes, block_ms: int
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    reply: Any = await redis.xread({"headrace.results": cursor}, block=block_ms)
    return list(reply[0][1]) if reply else []


async def _assert_nothing_left(stack: Stack) -> None:
    redis = Redis.from_url(stack.broker)
    for lane in ("interactive", "standard", "batch", "background"):
        stream = f"headrace.requests.{lane}"
        assert await redis.xlen(stream) == 0, f"{stream} still holds requests"
    assert await redis.xlen("headrace.dlq") == 0, "there are dead letters"
    await redis.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    with contextlib.ExitStack() as stacks:
        folder = stacks.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-"))
        stack = stacks.enter_context(running_stack(Path(folder), *SIM, lease_s=LEASE_S))
        print(asyncio.run(chaos(stack, seed, options.kills)))


if __name__ == "__main__":
    main()
