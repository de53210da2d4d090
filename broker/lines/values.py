"""Values of a body by their type. `where`: how the user finds one, as in `tools[0].function`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.broker.lines.refused import invalid, missing, type_name

MAX_TOKEN_ID = 2**32 - 1


def to_object(where: str, value: object) -> Mapping[str, object]:
    """The object that `value` is; `Refused` where it is none, or is missing."""
    if value is None:
        raise missing(where)
    if not isinstance(value, dict):
        raise invalid(where, f"must be an object, not {type_name(value)}")
    return value


def to_string(where: str, value: object) -> str:
    """The string that `value` is; `Refused` where it is none, or is missing."""
    if value is None:
        raise missing(where)
    if not isinstance(value, str):
        raise invalid(where, f"must be a string, not {type_name(value)}")
    return value


def object_in_json(where: str, text: str) -> Mapping[str, object]:
    """The object that `text` is the JSON of; `Refused` where it is not."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(where, "must be the JSON of an object")
    return value


def to_boolean(where: str, value: object) -> bool | None:
    """The boolean that `value` is, or None where it is unset; `Refused` where it is anything else."""
    if value is None or isinstance(value, bool):
        return value
    raise invalid(where, f"must be a boolean, not {type_name(value)}")


def to_token_ids(where: str, ids: Sequence[object]) -> list[int]:
    """`ids`, if they are all token ids; else `Refused`."""
    checked = [i for i in ids if type(i) is int and 0 <= i <= MAX_TOKEN_ID]
    if len(checked) != len(ids):
        raise invalid(where, "must hold token ids only: integers from 0")
    return checked
