"""The kernels that this process uses."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from headrace.gpu_engine.native.choose import choose_library


@cache
def library() -> ctypes.CDLL | None:
    """The fastest build of them, or None where there is none: torch serves then."""
    # One file of them, for torch's own decoder, takes its OpenMP from torch, which must have loaded it.
    return choose_library() if torch.backends.openmp.is_available() else None
