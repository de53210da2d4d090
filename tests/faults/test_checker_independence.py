"""The checker shares no code with what it judges."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKER = Path(__file__).parent / "checker"
ALLOWED = {"google", "kafka", "msgspec", "redis"}


def imported(source: str) -> Iterator[str]:
    """All modules that a source names, wherever in it; in texts too, as `import_module` takes them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^headrace\.(?!v1\.Event$)\w+\S*$", node.value)


def foreign(source: str) -> list[str]:
    return [
        name
        for name in imported(source)
        if not name.startswith("tests.faults.checker")
        and name.partition(".")[0] not in ALLOWED | sys.stdlib_module_names
    ]


def test_the_checker_imports_nothing_of_ours() -> None:
    sources = {path.name: path.read_text() for path in CHECKER.rglob("*.py")}
    assert {name: found for name, source in sources.items() if (found := foreign(source))} == {}
    assert len(sources) >= 8


def test_an_import_of_ours_would_be_noticed() -> None:
    for planted in (
        "import headrace",
        "from headrace.broker.fold import fold",
        "def late():\n    import headrace.broker.wire",
        "import_module('headrace.broker.fold')",
        "from tests.support.drive import x",
        "from ..readers import Seen",
    ):
        assert foreign(planted), planted
