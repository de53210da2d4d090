"""How a check says no: caught where a line is parsed, and turned into a `LineError` there."""

from __future__ import annotations


class Refused(Exception):
    """A value that is no valid request. `code` as in the OpenAI batch API, `param` the field's name."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def invalid(param: str, message: str) -> Refused:
    """The refusal of a value that has the wrong type or lies outside its range."""
    return Refused("invalid_request", f"{param} {message}", param)


def missing(param: str, message: str = "is required") -> Refused:
    return Refused("missing_required_parameter", f"{param} {message}", param)


def unsupported(param: str, message: str) -> Refused:
    """The refusal of what the API knows, and we do not do."""
    return Refused("unsupported_parameter", f"{param} {message}", param)


def type_name(value: object) -> str:
    """The JSON name of a value's type, with its article, for sentences."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number with a fraction"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
    return "an object"


def shown(value: object, limit: int = 60) -> str:
    """A user's value for a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
