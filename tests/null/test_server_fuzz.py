"""Any JSON at all gets an answer below 500, and an error always has the protocol's shape."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakes_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8),
    st.sampled_from([0, 1, -1, 16, 0.5, "user", "assistant", "json_schema", "text", "<|im_end|>", "\x00"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SHARED = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"5": 1}, "seed": 1, "stop": ["a"], "stop_token_ids": [1], "max_tokens": 4,
    "min_tokens": 1, "ignore_eos": True, "n": 2, "stream": True, "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}, "regex": "a",
    "choice": ["a"], "grammar": "g", "priority": 1, "return_token_ids": True, "timeout": 5.0, "model": "toy",
    "metadata": {},
}  # fmt: skip
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": SHARED
    | {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
        ],
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 4,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "chat_template_kwargs": {"a": 1},
        "tools": [],
        "tool_choice": "none",
    },
    "/v1/completions": SHARED
    | {
        "prompt": ["ab", "c"],
        "logprobs": 1,
        "echo": True,
        "prompt_logprobs_from": 1,
        "best_of": 2,
        "suffix": None,
        "add_special_tokens": True,
        "parse_special": True,
    },
    "/tokenize": {
        "prompt": "a",
        "messages": [{"role": "user", "content": "a"}],
        "segments": [["a", True]],
        "model": "toy",
        "return_segments": True,
        "add_special_tokens": True,
        "parse_special": True,
    },
    "/detokenize": {"tokens": [1, 2], "model": "toy"},
}


def damaged(good: Any) -> st.SearchStrategy[Any]:
    """The value itself, something else, or the value with a part of it damaged."""
    choices = [st.just(good), VALUES]
    if isinstance(good, dict):
        choices.append(
            st.tuples(
                st.fixed_dictionaries({}, optional={key: damaged(value) for key, value in good.items()}),
                st.dictionaries(st.text(max_size=6), VALUES, max_size=1),
            ).map(lambda pair: pair[0] | pair[1])
        )
    if isinstance(good, list) and good:
        choices.append(st.lists(damaged(good[0]), max_size=3))
    return st.one_of(choices)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    made = Session(FakeEngine())
    yield made
    made.close()


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_never_a_fault(session: Session, path: str, data: st.DataObject):
    good = ROUTES[path]
    keys = data.draw(st.lists(st.sampled_from(sorted(good)), max_size=6, unique=True))
    body = {key: data.draw(damaged(good[key])) for key in keys}
    for key in ("messages", "prompt", "tokens"):  # most of the time, enough to get past the first check
        if key in good and key not in body and data.draw(st.integers(0, 4)):
            body[key] = good[key]
    check(session.post(path, body))


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=40) | VALUES.map(lambda value: repr(value).encode("utf-8", "surrogatepass")))
def test_never_a_fault_for_any_bytes(session: Session, path: str, raw: bytes):
    check(session.post(path, raw))


def check(response: Any) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
