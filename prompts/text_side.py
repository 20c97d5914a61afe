"""What prompts are made with: a tokenizer and a chat template, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types import Message, Segment, ToolSpec


class TextSide(Protocol):
    """The text side of one model. Instances are hashable and can be weakly referenced."""

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of the segments, encoded as one text without anything added. Only `control` segments yield control
        tokens."""

    async def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, without control tokens; an unfinished character becomes U+FFFD."""

    async def text_start(self) -> list[int]:
        """The ids that stand before a plain text (a begin-of-text token, for models that want one), or none."""

    async def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        """The chat template's text for the messages, contents not `control`. With `tools`, also what the model is to
        be told of them, in a way that goes with how calls are written by the model; contents of the assistant's turns
        are then given as they were generated, calls included. Raises `TemplateFailed`."""
