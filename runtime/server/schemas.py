"""What the server accepts, as pydantic models: they validate and they are the documentation at /docs.

Types are strict, numbers finite, and an unknown field is an error. Ranges that need the model (ids, context length) are
checked in `sampling` and `prompts`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .schema_base import Body, FirstFault, only_kinds
from .tool_schemas import MAX_TOOLS, MessageToolCall, Tool, ToolChoice

MAX_STOP = 16
StopString = Annotated[str, Field(min_length=1, max_length=512)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


PromptIds = Annotated[list[TokenId], FirstFault(), Field(min_length=1)]

ALLOWED = {
    "prompt": "must be a string, a list of token ids, or a list of at most 1024 strings or of as many lists of token "
    "ids; no list may be empty",
    "stop": f"must be a string, or a list of at most {MAX_STOP} strings",
    "content": "must be a string, or a list of at least one part of type text",
    "schema": "must be an object, true or false",
    "segments": "must be a list of pairs of a text and true or false",
    "speculation": "must be 'off', or a list of 'forced', 'suffix' and 'model'",
    "a": "must be a string, or an object such as /tokenize takes",
    "b": "must be a string, or an object such as /tokenize takes",
}
"""What to say of fields that take values of several kinds; the checker names only one of these."""


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="Send the usage in a last chunk without choices.")
    continuous_usage_stats: bool | None = Field(None, description="Send the usage so far in every chunk.")
    include_obfuscation: bool | None = Field(None, description="Accepted, without effect.")


class JsonSchemaFormat(Body):
    name: str | None = Field(None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema", description="The JSON schema.")
    strict: bool | None = Field(None, description="Refuse what cannot be enforced instead of relaxing it.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="A schema beside type json_object.")
    format: dict[str, Any] | None = Field(None, description="The format that goes with type structural_tag.")
    strict: bool | None = Field(None, description="With type structural_tag: as for json_schema.")


class GenerationBody(Body):
    """The fields that chat and completions share."""

    model: str | None = Field(None, description="Name of the served model; the one there is if left out.")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; 1 if left out.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="0 or -1: off.")
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=2048, description="Token id (as a string) to what is added to its logit."
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: StopString | Annotated[list[StopString], FirstFault(), Field(max_length=MAX_STOP)] | None = None
    stop_token_ids: Annotated[list[TokenId], FirstFault(), Field(max_length=64)] | None = None
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    min_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    ignore_eos: bool | None = None
    n: int | None = Field(None, ge=1, le=128, description="Number of choices for each prompt.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = Field(None, min_length=1, max_length=65536, description="A regular expression for the output.")
    choice: (
        Annotated[list[Annotated[str, Field(min_length=1)]], FirstFault(), Field(min_length=1, max_length=1024)] | None
    ) = Field(None, description="The output is one of these.")
    grammar: str | None = Field(None, min_length=1, max_length=262144, description="A grammar in EBNF.")
    lark: str | None = Field(None, min_length=1, max_length=262144, description="A grammar in Lark's notation.")
    priority: int | None = Field(None, ge=-1000, le=1000, description="Higher goes first.")
    speculation: Literal["off"] | list[Literal["forced", "suffix", "model"]] | None = Field(
        None, description="Where drafts may come from; the answer is the same. All sources if left out."
    )
    return_token_ids: bool | None = Field(None, description="Send the ids of the prompt's and the output's tokens.")
    timeout: float | None = Field(None, gt=0, le=86400, description="Seconds after which the request is given up.")
    user: str | None = Field(None, description="Whose request it is: those of one user are taken for one run.")
    store: bool | None = Field(None, description="Accepted, without effect.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted, without effect.")
    service_tier: str | None = Field(None, description="Accepted, without effect.")
    prompt_cache_key: str | None = Field(None, description="Requests with the same are taken for one run.")
    session_id: str | None = Field(None, description="Likewise.")
    prompt_cache_retention: str | None = Field(None, description="Accepted, without effect.")
    safety_identifier: str | None = Field(None, description="Accepted, without effect.")


class ContentPart(Body):
    type: Literal["text"]
    text: str
    cache_control: Any = Field(None, description="Accepted, without effect: reuse needs no marks.")

    @model_validator(mode="before")
    @classmethod
    def only_text(cls, value: Any) -> Any:
        return only_kinds(value, "parts", ("text",))


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], FirstFault(), Field(min_length=1)] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: Annotated[list[MessageToolCall], FirstFault(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Calls that the assistant made earlier."
    )
    tool_call_id: str | None = Field(None, max_length=256, description="The call that a message of a tool answers.")
    refusal: str | None = None
    reasoning_content: str | None = Field(None, description="Given to the template as it is.")
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def has_content(self) -> Message:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise PydanticCustomError("content", "content is missing")
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "only the assistant makes tool calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "tool_call_id is missing: which call is this the answer to?")
        return self


class ChatRequest(GenerationBody):
    """A request for the next message of a conversation."""

    messages: Annotated[list[Message], FirstFault(), Field(min_length=1, max_length=8192)]
    max_completion_tokens: int | None = Field(None, ge=0, le=2**31 - 1, description="As max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = Field(None, description="True unless the last message is to be continued.")
    continue_final_message: bool | None = Field(None, description="Go on in the last message instead of a new one.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the chat template.")
    history: Literal["template", "append_only"] | None = Field(
        None, description="append_only: keep what was generated, such as past reasoning, though the template drops it."
    )
    tools: Annotated[list[Tool], FirstFault(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Functions that the model may call."
    )
    tool_choice: ToolChoice | None = Field(None, description="Whether it may, or must, call one; auto if left out.")
    parallel_tool_calls: bool | None = Field(None, description="False: at most one call; true if left out.")
    modalities: Annotated[list[Literal["text"]], FirstFault()] | None = Field(None, description="Only text.")
    prediction: dict[str, Any] | None = Field(None, description="Accepted, without effect: it only asks for speed.")


class CompletionRequest(GenerationBody):
    """A request to continue a text, or token ids."""

    prompt: (
        str
        | PromptIds
        | Annotated[list[str], FirstFault(), Field(min_length=1, max_length=1024)]
        | Annotated[list[PromptIds], FirstFault(), Field(min_length=1, max_length=1024)]
    ) = Field(description="A text, token ids, or a list of either.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Log-probabilities with so many alternatives.")
    echo: bool | None = Field(None, description="Send the prompt back before the output.")
    prompt_logprobs_from: int | None = Field(
        None, ge=1, le=2**31 - 1, description="With echo and logprobs: echo and score the prompt from this token on."
    )
    reasoning: bool | None = Field(
        None, description="Tell apart what a reasoning model thinks first; what the output is held to is the answer."
    )
    best_of: int | None = Field(None, ge=1, description="Only the value of n.")
    suffix: None = Field(None, description="Not supported.")
    add_special_tokens: bool | None = Field(None, description="Begin with the model's start token; true if left out.")
    parse_special: bool | None = Field(
        None, description="Read special strings in the prompt as special tokens; true if left out."
    )
    tools: Annotated[list[Tool], FirstFault(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Functions that the prompt has told the model of: calls of them are held to their schemas."
    )
    tool_choice: ToolChoice | None = Field(None, description="As for chat.")
    parallel_tool_calls: bool | None = Field(None, description="As for chat.")


class TokenizeRequest(Body):
    """A text, a conversation or segments to be turned into token ids: exactly one of the three."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], FirstFault(), Field(min_length=1, max_length=8192)] | None = None
    tools: Annotated[list[Tool], FirstFault(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="With messages: the functions that the model is told of."
    )
    segments: (
        Annotated[list[Annotated[list[str | bool], FirstFault(), Field(min_length=2, max_length=2)]], FirstFault()]
        | None
    ) = Field(None, description="Pairs of text and whether special strings in it are special tokens.")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = Field(None, description="Begin with the model's start token (not for messages).")
    parse_special: bool | None = Field(None, description="As for completions.")
    return_segments: bool | None = Field(None, description="Also send the rendered text, in pieces.")


class ExplainRequest(Body):
    """Two prompts to be compared, each a text or what `/tokenize` takes. `a` came first; how much of `b` is reused?"""

    model: str | None = None
    a: str | TokenizeRequest
    b: str | TokenizeRequest


class DetokenizeRequest(Body):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: Annotated[list[TokenId], FirstFault()]
