"""For tests of the native kernels."""

import pytest

from headrace.gpu_engine.native.library import library
from headrace.gpu_engine.native.pool import Pool

compiled = pytest.mark.skipif(
    library() is None, reason="NO NATIVE KERNELS HERE (no g++, or no AVX2): they are not tested, torch serves"
)


def pool_of(threads: int = 2) -> Pool:
    kernels = library()
    assert kernels is not None
    return Pool(threads, kernels=kernels)
