"""Real schemas with labelled instances: what is not refused never accepts an invalid instance."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from bosquet.errors import GrammarInvalid
from bosquet.grammar.compiler import GrammarCompiler
from bosquet.grammar.vocabulary import Vocabulary
from bosquet.types import GrammarSpec

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "maskbench" / "sample.jsonl"
EVERY = 6


@pytest.fixture(scope="module")
def schemas():
    if not SAMPLE.exists():
        assert not os.environ.get("CI"), f"{SAMPLE} is missing"
        pytest.skip(f"{SAMPLE} is missing")
    with SAMPLE.open() as lines:
        return [json.loads(line) for at, line in enumerate(lines) if at % EVERY == 0]


def outcome(compiler, row):
    """(what became of the schema, invalid instances that were accepted, valid ones that were rejected)."""
    try:
        compiled = compiler.compile(GrammarSpec("json_schema", json.dumps(row["schema"], ensure_ascii=False)))
    except GrammarInvalid as error:
        named = str(error).startswith(("schema: #", "json_schema: "))
        return "refused" if named else f"refused without a name: {error}", [], []
    wrong, rejected = [], []
    for test in row["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False).encode()
        matcher = compiled.matcher()
        accepted = matcher.try_accept(text) == len(text) and matcher.completed
        if accepted and not test["valid"]:
            wrong.append((row["id"], test["description"]))
        if test["valid"] and not accepted:
            rejected.append((row["id"], test["description"]))
    return "rejects" if rejected else "passes", wrong, rejected


def test_nothing_invalid_is_accepted(schemas, record_property, capfd):
    compiler = GrammarCompiler(Vocabulary([bytes([byte]) for byte in range(256)] + [b""], 257, (256,)))
    results = [outcome(compiler, row) for row in schemas]
    counts = Counter(result for result, _, _ in results)
    record_property("outcomes", dict(counts))
    assert [case for _, wrong, _ in results for case in wrong] == []
    assert counts.keys() <= {"refused", "passes", "rejects"}
    assert counts["passes"] >= 0.70 * len(schemas), counts
    assert counts["rejects"] <= 0.07 * len(schemas), counts
    assert capfd.readouterr().err == ""  # xgrammar had nothing to warn of
    print(f"\n{len(schemas)} schemas: {dict(counts)}")
