"""The page at /docs shows every route and field, and needs nothing from elsewhere."""

import json
import re
from html.parser import HTMLParser

import pytest
from fakes_engine import FakeEngine
from live_server import get

from bosquet.runtime.server.docs_page import docs_page

VOID = {"meta", "input"}


class Page(HTMLParser):
    """Text and attributes of a page; raises for tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src", "action", "srcset", "data", "poster", "background"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        while (last := self.open.pop()) != tag:
            assert last in ("th", "tr", "html"), f"</{tag}> ends <{last}>"  # their ends may be left out

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_nothing_is_fetched_from_elsewhere():
    text = get(FakeEngine(), "/docs").text
    page = Page(text)
    assert [link for link in page.links if not link.startswith("#")] == ["openapi.json"]
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert not re.search(r"https?:|(?<![:\w])//\w|@import|url\(", text)
    assert get(FakeEngine(), "/redoc").status_code == 404
    assert "/docs" not in get(FakeEngine(), "/openapi.json").json()["paths"]


def test_every_route_and_field_is_shown():
    response = get(FakeEngine(), "/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(response.text)
    document = get(FakeEngine(), "/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}" in page.words
            assert "".join(page.words).count(operation["description"].split("`")[0])
    bodies = {"ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"}
    assert bodies <= page.ids
    for name in page.ids:
        for field in document["components"]["schemas"][name].get("properties", ()):
            assert field in page.words, (name, field)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9, "default": 3}, "<td>integer, ≥ 1, ≤ 9</td><td><code>3</code>"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "<td>string</td><td></td>"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/B"}}, '<td>list of <a href="#B">B</a></td>'),
        ({"$ref": "#/components/schemas/C"}, '<section id="C"><h2>C</h2><p></p>object</section>'),
        ({"enum": ["<a>", 1]}, "<code>&quot;&lt;a&gt;&quot;</code>, <code>1</code>"),
        ({"description": "<script> and `code`"}, "<td>&lt;script&gt; and <code>code</code></td>"),
    ],
)
def test_a_field(schema: dict, shown: str):
    schemas = {"A": {"properties": {"x": schema}, "required": ["x"]}, "B": {"enum": [1]}, "C": {"type": "object"}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    document = {
        "info": {"title": "T", "version": "1"},
        "paths": {"/a": {"post": {"requestBody": body}}},
        "components": {"schemas": schemas},
    }
    text = docs_page(document)
    assert shown in text
    assert "<td><code>x</code> *</td>" in text
    assert ('id="B"' in text) == ("schemas/B" in json.dumps(schema))
