"""The tour of the language runs as it is printed, and importing the language loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes_lang import FakeBackend, written
from fakes_lang_http import bosquet_server

import bosquet.lang as language
from bosquet.lang.backends import http

TOUR = Path(__file__).resolve().parents[2] / "docs" / "language.md"
SCRIPT: dict[str, Any] = {
    "greeting": "hello",
    "thought": "six sevens\n",
    "answer": "42",
    "facts": "a\nb\nc",
    "text": "more",
    "goodbye": "bye",
    "person": '{"name": "Ada", "age": 36}',
    "act": [written("price", item="bread") + written("multiply", a=1.5), "It costs 2.4."],
}


def test_every_block_of_the_tour_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # the tour keeps a file
    server = bosquet_server(FakeBackend(script=SCRIPT))
    plain = http.BosquetServer.__init__
    monkeypatch.setattr(http.BosquetServer, "__init__", lambda self, url: plain(self, url, transport=server))
    blocks = re.findall(r"^```python\n(.*?)^```", TOUR.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 16
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            source = block.replace("import bosquet\n", "import bosquet.lang as bosquet\n")
            exec(compile(source, str(TOUR), "exec"), names)
    finally:
        language.set_backend(None)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == ["hello", "0", "42"]
    assert "Ada 36" in printed
    at = printed.index("It costs 2.4.")
    assert printed[at - 2 : at] == ['price {"item": "bread"} 2.4', 'multiply {"a": 1.5} 3.0']
    assert any(line.endswith("['hello', 'hello', 'hello']") for line in printed)
    assert "['greeting', 'goodbye']" in printed
    assert any(line.startswith("person failed: the output was cut at max_tokens=3") for line in printed)
    assert printed[-3] == "name='Ada' age=36 1"
    assert printed[-2].startswith("hello ")
    assert printed[-1] == "[('greeting', None), ('reply', True)]"
    assert len(server.bodies("/v1/completions")) > 5


def test_the_tour_names_every_way_of_sampling() -> None:
    text = TOUR.read_text()
    assert [name for name in language.Sampling.__annotations__ if f"`{name}`" not in text] == []


def test_the_language_is_light_to_import() -> None:
    heavy = ("torch", "transformers", "httpx", "rich", "pydantic", "fastapi", "tokenizers", "jinja2", "numpy")
    code = f"import sys, bosquet.lang; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_all_that_is_exported_is_there_and_sorted() -> None:
    for name in language.__all__:
        assert getattr(language, name) is not None
    by_kind = sorted(language.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert language.__all__ == by_kind  # constants, classes, functions
    with pytest.raises(AttributeError, match="nonsense"):
        language.nonsense  # noqa: B018
