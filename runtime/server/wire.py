"""The JSON objects that the server sends, as msgspec structs. Knows nothing of requests or of the engine.

Fields that are UNSET are left out; None is sent as null.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

History = Literal["template", "append_only"]


class PromptDetails(Struct):
    """`transcript_tokens` are the ids that an earlier turn left; there where there are any."""

    cached_tokens: int
    transcript_tokens: int | UnsetType = UNSET


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """`completion_tokens_details` is there for models that reason."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class RelaxedKeyword(Struct):
    """A keyword of a schema that the output was not held to. `path` is the JSON pointer of its schema."""

    path: str
    keyword: str
    reason: str


class RunJoined(Struct):
    """`by` is what told that the request belongs to the run `id`: `header`, a field of the body, or `prefix`."""

    id: str
    by: str


class Extras(Struct):
    """What an answer says beyond the protocol, under `x_bosquet`. `history` is there where append_only was asked for:
    whether the prompt is that, or the template's."""

    relaxed: list[RelaxedKeyword] | UnsetType = UNSET
    history: History | UnsetType = UNSET
    run: RunJoined | UnsetType = UNSET


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


class FunctionCall(Struct):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True):
    """`content` is null where there are calls and no text."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    x_bosquet: Extras | UnsetType = UNSET


class FunctionDelta(Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """`id`, `type` and the name are in the first delta of a call; clients append what is sent again."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    x_bosquet: Extras | UnsetType = UNSET


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
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    content: str | UnsetType = UNSET  # where the request has tools or asks for reasoning: the text without either
    branch: str | UnsetType = UNSET  # of a program: where the choice goes on
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # where it was asked for: what was thought before the answer


class TextCompletion(Struct, kw_only=True):
    """A completion, or a chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    x_bosquet: Extras | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    max_model_len: int
    owned_by: str = "bosquet"


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
