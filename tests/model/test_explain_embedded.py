"""`bosquet explain A B` without a server: the embedded model's tokenizer and template."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from why_plants import PLANTS, Asked, in_case

from bosquet.cli import app
from bosquet.runtime.models.source import EMBEDDED, resolve
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.explain import compared, comparison
from bosquet.runtime.server.explain_prompt import Told
from bosquet.runtime.server.schemas import ExplainRequest
from bosquet.runtime.server.services import Text
from bosquet.runtime.serving import read_text, text_for_comparing


@pytest.fixture(scope="module")
def text() -> Text:
    return text_for_comparing(*read_text(resolve(EMBEDDED, weights=False).path, ServerConfig()))


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cause_is_named_in_real_tokens(text: Text, name: str):
    """As `tests/null/test_why_miss.py`, which has tokens of one byte each."""

    def side(asked: Asked) -> dict[str, Any]:
        return {"messages": in_case(name, asked).messages, **asked.more}

    before, missing, kind, field = PLANTS[name]
    body = ExplainRequest.model_validate({"a": side(before[-1]), "b": side(missing)})
    found = asyncio.run(compared(text, body))
    assert found.place is not None
    assert (found.kind, found.place.name) == (kind, field)


def test_two_files_need_no_server(tmp_path: Path):
    def written(name: str, now: str) -> str:
        messages = [{"role": "system", "content": f"Now: {now}. Be brief."}, {"role": "user", "content": "\x1b[2J Hi"}]
        (tmp_path / name).write_text(json.dumps({"messages": messages, "temperature": 0}))
        return str(tmp_path / name)

    result = CliRunner().invoke(app, ["explain", written("a.json", "08:00:01"), written("b.json", "08:02:07")])
    assert result.exit_code == 0, result.output
    assert "cause   timestamp" in result.output
    assert "the system message, character 5" in result.output
    assert all(each.isprintable() or each == "\n" for each in result.output)


def test_the_same_text_in_other_tokens_is_named(text: Text):
    tokenizer: Any = text.tokenizer
    whole = tokenizer.encode("An unbelievable tale of the mountains.", specials=False)
    apart = [
        t for part in ("An unbel", "ievable tale of the mountains.") for t in tokenizer.encode(part, specials=False)
    ]
    assert whole != apart
    found = comparison(text, (whole, Told()), (apart, Told()))
    assert found.kind == "tokenization"
    assert comparison(text, (whole, Told()), (whole, Told())).kind == "same"
