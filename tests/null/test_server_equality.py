"""Invariant I7 at the protocol's level: streaming and not streaming give the same message, for every split."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakes_engine import FakeEngine, Script, says
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session, events

MESSAGES = [{"role": "user", "content": "hi"}]
TEXTS = st.text(st.sampled_from("ab<stop>é☃🎄\n \u200d"), max_size=14)
PIECES = st.lists(st.integers(1, 5), min_size=1, max_size=5)
STOPS = st.lists(st.sampled_from(["<stop>", "☃", "ba", "a<s"]), max_size=3, unique=True)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    made = Session(FakeEngine())
    yield made
    made.close()


def both(session: Session, path: str, body: dict[str, Any], script: Script, pieces: list[int]) -> tuple[Any, list[Any]]:
    """The answer as one, token by token, and as a stream, in other pieces."""
    session.engine.script, session.engine.pieces = script, (1,)
    whole = session.post(path, body).json()
    session.engine.pieces = tuple(pieces)
    return whole, events(session.post(path, body | {"stream": True}))


def joined_chat(chunks: list[Any], n: int) -> list[dict[str, Any]]:
    """What a client makes of the chunks."""
    choices: list[dict[str, Any]] = [
        {"content": "", "finish": None, "stop": None, "logprobs": [], "ids": []} for _ in range(n)
    ]
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices[piece["index"]]
            assert choice["finish"] is None, "nothing may follow the end of a choice"
            choice["content"] += piece["delta"].get("content", "")
            choice["finish"] = piece["finish_reason"]
            choice["stop"] = piece.get("stop_reason")
            choice["ids"] += piece.get("token_ids", [])
            choice["logprobs"] += (piece["logprobs"] or {}).get("content", [])
    return choices


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3),
    pieces=PIECES,
    stop=STOPS,
    limit=st.integers(1, 40),
    end=st.booleans(),
    ids=st.booleans(),
)
def test_chat(session: Session, texts: list[str], pieces: list[int], stop: list[str], limit: int, end: bool, ids: bool):
    if not end and not all(texts):
        end = True  # a choice without any token has nothing to stream
    script = says(*texts, end=end)
    body = {
        "messages": MESSAGES, "n": len(texts), "logprobs": True, "return_token_ids": ids, "max_tokens": limit,
        "stop": stop,
    }  # fmt: skip
    whole, flow = both(session, "/v1/chat/completions", body, script, pieces)
    assert flow[-1] == "[DONE]"
    expected = [
        {
            "content": choice["message"]["content"],
            "finish": choice["finish_reason"],
            "stop": choice.get("stop_reason"),
            "logprobs": choice["logprobs"]["content"],
            "ids": choice.get("token_ids", []),
        }
        for choice in whole["choices"]
    ]
    assert joined_chat(flow[:-1], len(texts)) == expected
    for choice, text in zip(expected, texts, strict=True):  # and it is the right message
        assert choice["content"] == _answer(text, stop, limit)


@settings(max_examples=60, deadline=None)
@given(
    text=TEXTS,
    pieces=PIECES,
    stop=STOPS,
    prompts=st.lists(TEXTS.filter(bool), min_size=1, max_size=3),
    echo=st.booleans(),
    ids=st.booleans(),
)
def test_completions(
    session: Session, text: str, pieces: list[int], stop: list[str], prompts: list[str], echo: bool, ids: bool
):
    body = {"prompt": prompts, "n": 2, "logprobs": 2, "echo": echo, "return_token_ids": ids, "stop": stop}
    script = says(text, text[::-1])
    whole, flow = both(session, "/v1/completions", body, script, pieces)
    joined: dict[int, dict[str, Any]] = {}
    for chunk in flow[:-1]:
        for piece in chunk["choices"]:
            into = joined.setdefault(piece["index"], {"index": piece["index"], "text": "", "logprobs": None})
            into["text"] += piece["text"]
            for name in ("finish_reason", "stop_reason", "prompt_token_ids"):
                if piece.get(name) is not None:
                    into[name] = piece[name]
            if "token_ids" in piece:
                into["token_ids"] = into.get("token_ids", []) + piece["token_ids"]
            if piece["logprobs"] is not None:
                before = into["logprobs"] or {name: [] for name in piece["logprobs"]}
                into["logprobs"] = {name: before[name] + rest for name, rest in piece["logprobs"].items()}
    assert [joined[index] for index in sorted(joined)] == whole["choices"]


def _answer(text: str, stop: list[str], limit: int) -> str:
    """What is left of a text at the first stop string to be complete, or at the limit of bytes."""
    raw = text.encode()
    for end in range(1, min(len(raw), limit) + 1):
        hits = [word.encode() for word in stop if raw[:end].endswith(word.encode())]
        if hits:
            return raw[: end - len(hits[0])].decode("utf-8", "replace")
    return raw[:limit].decode("utf-8", "replace")
