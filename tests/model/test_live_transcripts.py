"""Echoed turns on the real cache: what a turn has computed is found by the next, although the client moves white space,
and the model writes letters where a tokenizer would take words."""

from __future__ import annotations

from typing import Any

import httpx
from live_engine import Served


def test_all_that_a_turn_has_computed_is_found_by_the_next(served: Served) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me of a bosquet, turn by turn."}]
    computed = 0
    for turn in range(3):
        body = {"messages": messages, "regex": "\n\n([a-z] ?){20}", "temperature": 1, "seed": turn, "max_tokens": 60}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
        usage, message = answer["usage"], answer["choices"][0]["message"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= computed
        computed = usage["total_tokens"] - 1  # the last token was never computed
        messages += [
            {"role": "assistant", "content": f"{message['content'].strip()}\n"},
            {"role": "user", "content": f"And turn {turn}?"},
        ]
