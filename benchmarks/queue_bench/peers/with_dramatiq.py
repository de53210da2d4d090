"""dramatiq on Redis: acknowledges late, and takes back what a worker without heartbeat held."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.cli import main as dramatiq_main
from dramatiq.cli import make_argument_parser
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from driving import drive, main, url

ADDRESS = os.environ.get("BENCH_URL") or url()  # the worker imports this file anew, without arguments
broker = RedisBroker(url=ADDRESS)
broker.add_middleware(Results(backend=RedisBackend(url=ADDRESS)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def no_op(number: int) -> int:
    return number


class DramatiqClient:
    def __init__(self) -> None:
        self._messages: list[Any] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        self._messages = [no_op.send(n) for n in numbers]

    async def collect(self) -> list[int]:
        return [message.get_result(block=True, timeout=60_000) for message in self._messages]


def worker() -> None:
    os.environ["BENCH_URL"] = url()
    arguments = ["with_dramatiq", "--processes", "1", "--threads", "8"]
    raise SystemExit(dramatiq_main(make_argument_parser().parse_args(arguments)))


if __name__ == "__main__":
    main(worker, lambda: drive(DramatiqClient()))
