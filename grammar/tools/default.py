"""For templates that know nothing of tools: a system text states them, and calls are written in the Hermes manner.

`tools_prompt` goes into the system message, `call_text` is what an assistant message with calls shows after its text,
and `result_text` the text of a user message that brings a result. Results of one turn belong in one user message, a
line break between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from .base import Tool, ToolChoice
from .hermes import CLOSE, OPEN, Hermes


class Default(Hermes):
    name: ClassVar[str] = "default"
    in_template: ClassVar[bool] = False


def tools_prompt(tools: Sequence[Tool], choice: ToolChoice) -> str:
    """The system text; empty where there is nothing to call. `tools` as given; the choice narrows them."""
    usable = choice.select(tools)
    if not usable:
        return ""
    lines = ["You can call these functions:", ""]
    for tool in usable:
        about = f": {tool.description.strip()}" if tool.description.strip() else ""
        lines.append(f"{tool.name}{about}")
        lines.append(f"Arguments: {json.dumps(_without_layout(tool.schema), ensure_ascii=False)}")
        lines.append("")
    lines.append("To call a function, write its name and its arguments as JSON, like this:")
    lines.append(call_text([("NAME", "{...}")]))
    lines.append(_RULES[choice.mode])
    return "\n".join(lines)


_RULES = {
    "auto": "Call a function only if it helps. Otherwise answer in words.",
    "required": "Always call a function. Write nothing else.",
    "named": "Call this function now. Write nothing else.",
}


def call_text(calls: Iterable[tuple[str, str]]) -> str:
    """Calls, each a name and the JSON text of its arguments, as the model writes them."""
    return "\n".join(
        f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CLOSE}' for name, arguments in calls
    )


def result_text(name: str, content: str) -> str:
    """What a tool gave back, for the model to read."""
    return f"<tool_response>\n{name}: {content}\n</tool_response>"


def _without_layout(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema less what says nothing to a model, at its root."""
    return {key: value for key, value in schema.items() if key not in ("$schema", "title", "additionalProperties")}
