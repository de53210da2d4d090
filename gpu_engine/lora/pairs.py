"""Adapters as settings name them: paths by name, or texts NAME=PATH, as a command line has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def split_pairs(given: object) -> object:
    """A list of texts NAME=PATH as paths by name; anything else as it is. Raises ValueError for a text that
    is no pair, and for a name that comes twice."""
    if not isinstance(given, list | tuple):
        return given
    paths: dict[str, str] = {}
    for pair in given:
        name, _, path = str(pair).partition("=")
        if not name or not path:
            raise ValueError("each is to be NAME=PATH")
        if name in paths:
            raise ValueError(f"the name {name!r} comes twice; give one of them another")
        paths[name] = path
    return paths


LoraModules = Annotated[dict[Annotated[str, Field(min_length=1)], str], BeforeValidator(split_pairs)]
