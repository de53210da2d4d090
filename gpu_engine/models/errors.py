"""The one error of this room that a user can cause."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be used; the text is one sentence that says why and what to do."""
