"""The pool ends every job, with many callers after one another and with pools beside one another."""

import threading

import pytest
import torch

from headrace.gpu_engine.native.declarations import Format
from headrace.gpu_engine.native.linear import multiply, pack_linear
from tests.support.native import compiled, pool_of

pytestmark = compiled


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_result(threads: int) -> None:
    weight, x = torch.randn(300, 64), torch.randn(50, 64)
    expected = multiply(pool_of(1), pack_linear(pool_of(1), weight, None, Format.INT16), x)
    pool = pool_of(threads)
    layer = pack_linear(pool, weight, None, Format.INT16)
    for _ in range(20):
        assert torch.equal(multiply(pool, layer, x), expected)


def test_pools_of_several_engines_do_not_disturb_one_another() -> None:
    weight, x = torch.randn(200, 64), torch.randn(20, 64)
    expected = multiply(pool_of(1), pack_linear(pool_of(1), weight, None, Format.FLOAT32), x)
    wrong: list[int] = []

    def work() -> None:
        pool = pool_of(3)
        layer = pack_linear(pool, weight, None, Format.FLOAT32)
        wrong.extend(n for n in range(30) if not torch.equal(multiply(pool, layer, x), expected))
        pool.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
