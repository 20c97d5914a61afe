"""Any OpenAI-compatible endpoint as a backend: chat messages, no token ids.

Knows nothing of tokens, templates or caches. What the protocol cannot do is not among the capabilities, so the language
refuses it by name; nothing is dropped or imitated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import httpx

from ...types import Call, Chunk, Message
from ..backend import CAPABILITIES
from .client import (
    CallDeltas,
    Client,
    HttpBackend,
    Json,
    grammar_fields,
    relaxed_keywords,
    sampling_fields,
    speculation_field,
    tool_fields,
    usage_counts,
)

PROTOCOL = frozenset(
    ("messages", "json_schema", "json_object", "tools", "presence_penalty", "frequency_penalty", "logit_bias", "seed")
)
"""What OpenAI's own chat protocol offers of `CAPABILITIES`."""

_NEVER = frozenset(("tokens", "text", "select", "logprobs", "top_logprobs", "images"))


class OpenAICompatible(HttpBackend):
    """`OpenAICompatible("https://api.openai.com/v1", "some-model", api_key)`.

    Many servers can do more than the protocol says. `also` names what this one can: `regex`, `choice`, `ebnf`, `lark`,
    `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `stop_token_ids`, `speculation` are then sent
    as fields of these names (`ebnf` as `grammar`), `structural_tag` as `response_format`, `continue` as
    `continue_final_message`. `reasoning`: the server tells thoughts apart by itself, as `reasoning_content` or
    `reasoning`.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        also: Iterable[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        more = frozenset(also)
        impossible = more & _NEVER | more - CAPABILITIES.keys()
        if impossible:
            raise ValueError(f"chat completions cannot do {', '.join(sorted(impossible))}")
        super().__init__(Client(url, api_key, transport))
        self.capabilities = PROTOCOL | more
        self._model = model

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        body: Json = {
            "model": self._model,
            "messages": [_as_sent(message) for message in call.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_fields(call.sampling),
            **grammar_fields(call.grammar),
            **tool_fields(call.tools),
            **speculation_field(call.speculation),
        }
        last = body["messages"][-1]
        deltas = CallDeltas()
        if last["role"] == "assistant" and not last["content"]:
            body["messages"].pop()  # the turn that is to be generated
        else:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        async with aclosing(self._client.events("/chat/completions", body)) as events:
            async for event in events:
                choices = event.get("choices") or [{}]
                delta = choices[0].get("delta") or {}
                prompt, completion, cached = usage_counts(event)
                finish = choices[0].get("finish_reason")
                deltas.add(delta.get("tool_calls") or ())
                yield Chunk(
                    text=delta.get("content") or "",
                    finish="stop" if finish == "tool_calls" else finish,
                    prompt_tokens=prompt,
                    completion_tokens=completion,
                    cached_tokens=cached,
                    relaxed=relaxed_keywords(event),
                    calls=deltas.calls() if finish else (),
                    reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
                )


def _as_sent(message: Message) -> Json:
    """A message with calls and no text says null, which all servers take."""
    return {**message, "content": message["content"] or None} if "tool_calls" in message else {**message}
