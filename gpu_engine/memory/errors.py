"""What running out of memory looks like."""

from __future__ import annotations


def is_out_of_memory(error: Exception) -> bool:
    """torch tells a processor's lack of memory in a plain RuntimeError, and a GPU's in a kind of it."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text
