"""The one error of this room that a user can cause, and how the errors of libraries are put into it."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be used; the text is one sentence that says why and what to do."""


def one_line(error: BaseException) -> str:
    """What an error of a library says, as a part of a sentence."""
    return " ".join(str(error).split()).rstrip(".") or repr(error)


def wrong_config(what: str) -> ModelError:
    """The error of a config whose values make no sense."""
    return ModelError(f"The model's config is wrong: {what}; check it against the model's own.")
