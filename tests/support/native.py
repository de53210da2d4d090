"""For tests of the native kernels."""

import pytest

from headrace.gpu_engine.native.library import library

compiled = pytest.mark.skipif(
    library() is None, reason="NO NATIVE KERNELS HERE (no g++, or no AVX2): they are not tested, torch serves"
)
