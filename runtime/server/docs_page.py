"""The page at `/docs`: the OpenAPI document as one HTML text that fetches nothing, so that it works without a network.

Knows what OpenAPI looks like; nothing of our routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matches {}",
}

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid var(--line); margin-top: 1.5rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-top: 1px solid var(--line) }
code, pre, textarea { font: 14px/1.4 ui-monospace, monospace }
h2 code { font-size: 1.15rem }
textarea, input { width: 100%; box-sizing: border-box }
textarea { height: 8rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
"""

_SCRIPT = """
for (const form of document.forms) form.onsubmit = async (event) => {
  event.preventDefault();
  const shown = form.querySelector("pre");
  const headers = {"Content-Type": "application/json"};
  if (form.key.value) headers.Authorization = "Bearer " + form.key.value;
  const path = form.dataset.path.replace(/{(\\w+)}/g, (_, name) => encodeURIComponent(form[name].value));
  try {
    const answer = await fetch(path, {method: form.dataset.method, headers, body: form.body?.value});
    shown.textContent = answer.status + "\\n";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; !(part = await reader.read()).done;) shown.textContent += part.value;
  } catch (error) { shown.textContent = error }
};
"""


def docs_page(document: Schema) -> str:
    """The whole page. `document` is what `/openapi.json` gives."""
    info, schemas = document["info"], document.get("components", {}).get("schemas", {})
    title = escape(f"{info['title']} {info['version']}")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><p>{_prose(info.get('summary', ''))}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    used: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_route(path, method, operation, schemas, used))
    parts += _models(schemas, used)
    parts.append(f"<script>{_SCRIPT}</script></html>")
    return "\n".join(parts)


def _route(path: str, method: str, operation: Schema, schemas: Schema, used: list[str]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    text = f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{_prose(operation.get('description', ''))}</p>"
    if body is not None:
        name = body["$ref"].rpartition("/")[2]
        used += [name] * (name not in used)
        text += f"<p>Body: {_kind(body)}</p>"
    inputs = "".join(
        f'<label>{escape(p["name"])} <input name="{escape(p["name"])}" required></label>'
        for p in operation.get("parameters", ())
    )
    if body is not None:
        example = json.dumps(_example(schemas[name]), indent=2)
        inputs += f'<label>body <textarea name="body">{escape(example)}</textarea></label>'
    return (
        f"<section>{text}<details><summary>Try it</summary>"
        f'<form data-method="{method.upper()}" data-path="{escape(path)}">{inputs}'
        '<label>key, if one is needed <input name="key" autocomplete="off"></label>'
        "<button>Send</button><pre></pre></form></details></section>"
    )


def _models(schemas: Schema, used: list[str]) -> Iterator[str]:
    """The bodies, and after them what they refer to."""
    for name in used:  # grows meanwhile
        schema = schemas[name]
        used += [found for found in _references(schema) if found not in used]
        rows = "".join(
            f"<tr><td><code>{escape(field)}</code>{' *' if field in schema.get('required', ()) else ''}</td>"
            f"<td>{_kind(about)}</td><td>{_default(about)}</td><td>{_prose(about.get('description', ''))}</td></tr>"
            for field, about in schema.get("properties", {}).items()
        )
        table = f"<table><tr><th>field (* required)<th>type<th>default<th></tr>{rows}</table>"
        yield (
            f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{_prose(schema.get("description", ""))}</p>'
            f"{table if rows else _kind(schema)}</section>"
        )


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def _kind(schema: Schema) -> str:
    """A type in a few words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(part) for part in schema[several] if part.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"<code>{escape(json.dumps(v))}</code>" for v in schema.get("enum", [schema.get("const")]))
    kind = escape(str(schema.get("type", "any")))
    if kind == "array":
        kind = f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    bounds = (escape(text.format(schema[key])) for key, text in _BOUNDS.items() if key in schema)
    return ", ".join((kind, *bounds))


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value is None else f"<code>{escape(json.dumps(value))}</code>"


_SAMPLES: Schema = {"string": "demo", "integer": 2}


def _example(schema: Schema) -> dict[str, Any]:
    """A body to begin with."""
    fields = schema.get("properties", {})
    if "messages" in fields:
        return {"messages": [{"role": "user", "content": "Name three trees."}]}
    if "prompt" in fields:
        return {"prompt": "Three trees:"}
    return {name: _SAMPLES.get(fields[name].get("type"), []) for name in schema.get("required", ())}


def _prose(text: str) -> str:
    """Docstrings hold no markup but `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split())))
