"""The JSON objects that the server sends, as msgspec structs. Knows nothing of requests or of the engine.

Fields that are UNSET are left out; None is sent as null.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class PromptDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenEntry]
    refusal: None = None


class ChatMessage(Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | None | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Struct):
    """The legacy shape. The first prompt token has no predecessor, so its log-probability is null."""

    text_offset: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class TextChoice(Struct):
    """A choice of a completion; in a stream, a piece of it, with `finish_reason` null until the last."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextCompletion(Struct):
    """A completion, or a chunk of a streamed one."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | None | UnsetType = UNSET


class ModelCard(Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "bosquet"


class ModelList(Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"
