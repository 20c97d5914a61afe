"""The generated parts of docs/structured.md: tables of the linter, limits, and real refusals.

    scripts/structured_docs            writes the page anew
    scripts/structured_docs --check    fails when the page is out of date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. What is around them is written by hand.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bosquet.errors import GrammarInvalid
from bosquet.grammar import formats, schema_read
from bosquet.grammar.compiler import MAX_MARKER, GrammarCompiler
from bosquet.grammar.routes import HUGE_SCHEMA, LARGE_SCHEMA, route_schema
from bosquet.grammar.schema_keywords import ANNOTATIONS, NUMBER_FORMATS, TABLE
from bosquet.grammar.string_formats import FORMATS
from bosquet.runtime.server.tool_schemas import MAX_TOOLS
from bosquet.runtime.settings import EngineConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "structured.md"
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DEPTH = inspect.signature(GrammarCompiler).parameters["max_depth"].default

EXAMPLES: tuple[tuple[str, Any], ...] = (
    ("items that differ", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    ("a document elsewhere", {"type": "object", "properties": {"who": {"$ref": "https://example.com/person.json"}}}),
    ("look-ahead", {"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]+$"}),
    ("branches that overlap", {"type": "string", "oneOf": [{"format": "hostname"}, {"format": "date"}]}),
    ("names that may repeat", {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}),
    ("too fine a step", {"type": "number", "multipleOf": 1e-12}),
    ("a format that nobody knows", {"type": "string", "format": "colour"}),
    ("a contradiction", {"type": "integer", "minimum": 3, "maximum": 2}),
    (
        "a contradiction between places",
        {
            "type": "object",
            "properties": {"code": {"type": "string", "pattern": "^[A-Z]{5}$", "maxLength": 4}},
            "required": ["code"],
        },
    ),
    ("not a schema", {"type": "object", "properties": {"age": "integer"}}),
)


def keywords() -> str:
    """The table of `grammar/schema_keywords.py`."""
    rows = ["| keyword | of | xgrammar | llguidance | otherwise, without `strict` |", "|---|---|---|---|---|"]
    rows += [
        f"| `{row.keyword}` | {row.of or 'any'} | {row.xgrammar} | {row.llguidance} | {row.otherwise} |"
        for row in TABLE
    ]
    annotations = ", ".join(f"`{name}`" for name in sorted(ANNOTATIONS))
    return (
        "\n".join(rows)
        + f"\n\nAnnotations say nothing of values and are left alone: {annotations}, and every other keyword.\n"
    )


def string_formats() -> str:
    """The formats of `grammar/string_formats.py` and of numbers."""
    numbers = [
        f"`{name}`" + (f" (integers: {bounds[0]:,} to {bounds[1]:,})" if bounds else "")
        for name, bounds in NUMBER_FORMATS.items()
    ]
    known = ", ".join(f"`{name}`" for name in FORMATS)
    return f"Strings: {known}.\n\nNumbers: {', '.join(numbers)}.\n"


def limits() -> str:
    """What a schema may be, by the constants that hold it to that."""
    defaults = {name: p.default for name, p in inspect.signature(GrammarCompiler).parameters.items()}
    timeout = next(field.default for field in dataclasses.fields(EngineConfig) if field.name == "grammar_timeout_s")
    rows = (
        ("size of a schema, expression, grammar or format, in bytes", f"{defaults['max_spec_bytes']:,}"),
        ("schemas nested in one another", str(DEPTH)),
        ("formats of a structural tag nested in one another", str(formats.MAX_DEPTH)),
        ("combinations of parts of one schema", f"{schema_read.MAX_STATES:,}"),
        ("seconds for one compile (`--grammar-timeout-s`)", f"{timeout:g}"),
        ("tools in one request", str(MAX_TOOLS)),
        ("tokens of a marker that ends a reasoning part", str(MAX_MARKER)),
    )
    table = "\n".join(["| | |", "|---|---:|", *(f"| {what} | {value} |" for what, value in rows)])
    kept = f"Compiled grammars are kept, up to {defaults['cache_bytes'] >> 20} MiB of them"
    large = f"Schemas of more than {LARGE_SCHEMA:,} bytes, once normalised, go to llguidance"
    return (
        f"{table}\n\n{kept}; two who ask for the same at once wait for one compile.\n"
        f"{large} where it enforces as much of them as xgrammar; of more than {HUGE_SCHEMA:,}, always.\n"
    )


def refusals() -> str:
    """What the linter says of each example, strict and not."""
    shown = []
    for what, schema in EXAMPLES:
        text = json.dumps(schema)
        shown.append(f"*{what}*\n\n    {text}\n")
        shown += [f"- strict: {_verdict(text, strict=True)}", f"- otherwise: {_verdict(text, strict=False)}\n"]
    return "\n".join(shown)


def _verdict(text: str, *, strict: bool) -> str:
    try:
        linted = route_schema(text, strict=strict, max_depth=DEPTH)
    except GrammarInvalid as error:
        return f"refused, ``{error}``"
    relaxed = [{"path": item.path, "keyword": item.keyword, "reason": item.reason} for item in linted.relaxed]
    told = "".join(f" ``{json.dumps(item, ensure_ascii=False)}``" for item in relaxed)
    return f"answered, relaxed:{told}" if told else "answered, and held to all of it"


PARTS: dict[str, Callable[[], str]] = {
    "keywords": keywords,
    "formats": string_formats,
    "limits": limits,
    "refusals": refusals,
}


def page(text: str) -> str:
    """`text` with every part written anew. Raises `ValueError` when a part is missing or unknown."""
    there = [match[2] for match in _PART.finditer(text)]
    if sorted(there) != sorted(PARTS):
        raise ValueError(f"the page has the generated parts {there}, and should have {list(PARTS)}")
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in sys.argv[1:]:
        if new != old:
            print(f"{PAGE.name} is out of date: run scripts/structured_docs")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
