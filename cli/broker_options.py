"""Options of a broker beside its address: `--broker-option name=value`, or HEADRACE_BROKER_OPTIONS.

They become a part of the address (`kafka://host:9092?security_protocol=SSL&…`), so what takes an address
takes them. Such an address may hold a password: our processes hand it on in the environment, and show the
one without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from headrace.cli.errors import Mistake

VARIABLE = "HEADRACE_BROKER_OPTIONS"
# A comma separates; one that belongs to a value is written `\,` and a backslash before a comma `\\`.
_ENTRY = re.compile(r"(?:[^,\\]|\\.|\\$)+", re.DOTALL)


def parse_options(given: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as a mapping, the last one of a name wins. Raises Mistake, without the value."""
    options: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise Mistake(f"--broker-option takes NAME=VALUE, and {name[:40]!r} has no =; see the README")
        options[name.strip()] = value
    return options


def parse_variable(text: str) -> dict[str, str]:
    """The same from the environment, separated by commas."""
    entries = (re.sub(r"\\([,\\])", r"\1", entry) for entry in _ENTRY.findall(text))
    try:
        return parse_options([entry.strip() for entry in entries if entry.strip()])
    except Mistake as error:
        raise Mistake(f"{VARIABLE} holds NAME=VALUE,NAME=VALUE: one of them has no =") from error


def with_options(url: str, options: Mapping[str, str]) -> str:
    """The address with the options in it, behind those that stand there already."""
    added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in options.items())
    if not added:
        return url
    return f"{url}{'&' if '?' in url else '?'}{added}"
