"""The JSON Schema test suite as cases for a compiler, and what became of each: one letter a test.

.  right: a valid instance accepted, an invalid one rejected
n  narrowed: a valid instance rejected
r  relaxed: an invalid instance accepted, and what lets it through was reported
x  the schema was refused
!  an invalid instance accepted in silence
?  refused with a message that does not say what
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.runtime.bench.instance_order import texts
from bosquet.runtime.bench.maskbench import byte_vocabulary
from bosquet.types import GrammarSpec

SUITE = Path(__file__).resolve().parents[2] / "shared" / "data" / "json_schema_test_suite" / "tests"
RATCHET = Path(__file__).resolve().parent / "data" / "json_schema_suite.json"
_DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


class Group(NamedTuple):
    name: str  # draft/file/description
    schema: Any
    tests: list[dict[str, Any]]


def groups() -> Iterator[Group]:
    """Every group of the suite; the draft is written into schemas that do not say it, as their folder does."""
    for draft, uri in _DRAFTS.items():
        for path in sorted((SUITE / draft).glob("*.json")):
            for group in json.loads(path.read_text(encoding="utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": uri, **schema}
                yield Group(f"{draft}/{path.stem}/{group['description']}", schema, group["tests"])


def judged(group: Group, compiler: GrammarCompiler, *, strict: bool) -> str:
    """One letter for each test of the group."""
    spec = GrammarSpec("json_schema", json.dumps(group.schema, ensure_ascii=False), strict=strict)
    try:
        compiled = compiler.compile(spec)
    except GrammarInvalid as error:
        return ("x" if "schema: " in str(error) else "?") * len(group.tests)
    letters = ""
    for test in group.tests:
        accepted = False
        for text in texts(group.schema, test["data"]):
            matcher = compiled.matcher()
            accepted |= matcher.try_accept(list(text)) == len(text) and matcher.completed
        if accepted == test["valid"]:
            letters += "."
        else:
            letters += "n" if test["valid"] else "r" if compiled.relaxed else "!"
    return letters


def results() -> dict[str, list[str]]:
    """group → letters under `strict`, and without."""
    compiler = GrammarCompiler(byte_vocabulary(), cache_bytes=0)
    return {group.name: [judged(group, compiler, strict=strict) for strict in (True, False)] for group in groups()}
