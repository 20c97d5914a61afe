"""docs/structured.md says what the linter's tables say, and names every tool format, marker and structural format."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from by_path import module_at

from bosquet.grammar import formats, reasoning
from bosquet.grammar.schema_keywords import TABLE, Row
from bosquet.grammar.tools import KNOWN

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "structured.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    return module_at(ROOT / "scripts" / "structured_docs.py")


def test_the_page_is_what_the_tables_say(docs: ModuleType) -> None:
    assert docs.page(PAGE) == PAGE, "run scripts/structured_docs"


def test_a_change_of_the_table_makes_it_out_of_date(docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "TABLE", (*TABLE, Row("frobnicate", "", "always", "never", "")))
    assert "`frobnicate`" in docs.page(PAGE)
    assert docs.page(docs.page(PAGE)) == docs.page(PAGE)


def test_a_part_that_is_missing_is_an_error(docs: ModuleType) -> None:
    for name in docs.PARTS:
        with pytest.raises(ValueError, match="generated parts"):
            docs.page(PAGE.replace(f"<!-- generated: {name} -->", ""))


def test_every_refused_example_names_a_place(docs: ModuleType) -> None:
    told = re.findall(r"refused, ``(.*?)``", docs.refusals())
    assert len(told) >= 8
    assert all(re.match(r"schema: #", message) for message in told)


def test_everything_that_can_be_chosen_is_named() -> None:
    names = [*KNOWN, *(marker.start for marker in reasoning.KNOWN.values())]
    names += re.findall(r"^    ([a-z_]+)\{", formats.__doc__ or "", re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in PAGE] == []
