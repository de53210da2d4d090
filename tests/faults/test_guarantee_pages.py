"""The pages on guarantees name tests and scenarios that exist, and no row of them is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.scenarios.table import SCENARIOS, THREE_NODES

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs/guarantees").glob("*.md") if path.name != "README.md")
SECTIONS = ["Problem", "Model", "Exits", "Limits", "Proved by"]
NAMES = {scenario.name for scenario in (*SCENARIOS, THREE_NODES)}


def test_the_index_leads_to_every_page() -> None:
    linked = re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs/guarantees/README.md").read_text())
    assert sorted(linked) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_has_its_sections_and_its_proofs_exist(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    proofs = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert proofs
    for file, name in proofs:
        assert f"def {name}" in (ROOT / file).read_text(), f"{file}::{name}"
    for line in re.findall(r"^- scenarios? .*(?:\n  .*)*", text, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", line))
        assert named <= NAMES, named - NAMES
