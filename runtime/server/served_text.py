"""The loaded model's text side as `prompts` asks for it. Knows nothing of branches or runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...grammar.tools import Tool, ToolChoice
from ...types import Message as PlainMessage
from ...types import Segment, ToolSpec
from .prompts import Turn, encode, render
from .schemas import Message
from .services import Text
from .tool_use import ToolUse


class ServedText:
    """`extra` are more variables for the chat template."""

    def __init__(self, text: Text, extra: dict[str, Any] | None = None) -> None:
        self._text = text
        self._extra = extra

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        return await encode(self._text, segments, "text", bos=False)

    async def decode(self, ids: Sequence[int]) -> str:
        return self._text.tokenizer.decode(ids)

    async def text_start(self) -> list[int]:
        return await encode(self._text, (), "text", bos=True)

    async def render(
        self, messages: Sequence[PlainMessage], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        told = [Tool(spec.name, spec.description, msgspec.json.decode(spec.parameters), spec.strict) for spec in tools]
        shown = [Message.model_validate(message) for message in messages]
        how = Turn(add_generation_prompt, continue_final_message=False)
        use = ToolUse(told, told, ToolChoice("auto"), True)
        segments, _ = await render(self._text, shown, how, self._extra, use, to_fit=False)
        return segments
