"""A conversation with tools, for a chat template: as it is for one that knows tools, in words for one that does not.

In words, a system text states the tools, calls of the assistant stand in its text, and the results of one answer are
one message of the user's. Knows nothing of requests or token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..grammar.tools import Format, Tool, ToolChoice, call_text, result_text, tools_prompt

Messages = list[Mapping[str, Any]]


def with_tools(
    form: Format, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> tuple[Messages, list[dict[str, Any]] | None]:
    """The messages and the tools to give to the template. Contents are texts; what an assistant's content says of calls
    already is left as it is. The tools are stated the same way whatever may be called at a time, so that a prompt keeps
    its beginning from one answer to the next."""
    if form.in_template:
        return list(messages), [_described(tool) for tool in tools] or None
    told: Messages = []
    names: dict[str, str] = {}  # of calls, by their ids
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
            text = result_text(name, message["content"])
            if after_result:
                text = f"{told.pop()['content']}\n{text}"
            told.append({"role": "user", "content": text})
        else:
            told.append(_in_words(message, names))
        after_result = is_result
    return _stated(told, tools_prompt(tools, ToolChoice("auto"))), None


def _in_words(message: Mapping[str, Any], names: dict[str, str]) -> Mapping[str, Any]:
    """The message with its calls in its text."""
    calls = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or ()]
    if not calls:
        return message
    names.update((id, function["name"]) for id, function in calls if id)
    written = call_text((function["name"], function["arguments"]) for _, function in calls)
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{content}\n{written}" if content else written}


def _stated(messages: Messages, prompt: str) -> Messages:
    """With the prompt in the system message, which is made if there is none."""
    if not prompt:
        return messages
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{prompt}"}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def _described(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
