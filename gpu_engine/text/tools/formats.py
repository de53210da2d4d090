"""The formats in which models call tools, and which of them a chat template speaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.gpu_engine.text.tools import hermes, llama, mistral
from headrace.gpu_engine.text.tools.calls import Scanner


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`scanner`: reads one answer, given the names of the tools. `marks`: what the format is known by, which
    is text of an answer even where the tokenizer calls it special.

    Calls are written `begin`, one or more objects `{"name": "…", "<key>": {…}}` with `between` between two,
    and `end`. `trigger`: the mark at the beginning of `begin` by which they are known behind text; "": they
    are all of an answer, or none of it.
    """

    name: str
    scanner: Callable[[Collection[str]], Scanner]
    marks: tuple[str, ...]
    trigger: str
    begin: str
    key: str
    between: str
    end: str


HERMES: Final = CallFormat(
    "hermes",
    hermes.HermesScanner,
    marks=(hermes.OPEN, hermes.CLOSE),
    trigger=hermes.OPEN,
    begin=f"{hermes.OPEN}\n",
    key="arguments",
    between=f"\n{hermes.CLOSE}\n{hermes.OPEN}\n",
    end=f"\n{hermes.CLOSE}",
)
LLAMA: Final = CallFormat(
    "llama3_json",
    llama.LlamaScanner,
    marks=(llama.TAG,),
    trigger="",
    begin="",
    key="parameters",
    between=f"{llama.BETWEEN} ",
    end="",
)
MISTRAL: Final = CallFormat(
    "mistral",
    mistral.MistralScanner,
    marks=(mistral.MARK,),
    trigger=mistral.MARK,
    begin=f"{mistral.MARK}[",
    key="arguments",
    between=", ",
    end="]",
)
FORMATS: Final[Mapping[str, CallFormat]] = {each.name: each for each in (HERMES, LLAMA, MISTRAL)}


_CODE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def knows_tools(template: str) -> bool:
    """Whether a chat template, in Jinja, uses the tools that it is given."""
    return any(re.search(r"\btools\b", _QUOTED.sub("", code)) for code in _CODE.findall(template))


def detect_format(template: str) -> CallFormat | None:
    """The format that a chat template teaches; None where that is none of ours."""
    if not knows_tools(template):
        return None
    if mistral.MARK in template:
        return None if "[ARGS]" in template else MISTRAL
    if hermes.OPEN in template:
        return None if "<function=" in template else HERMES
    return LLAMA if '{"name": ' in template and '"parameters": ' in template else None
