"""From messages, texts or ids to token ids that fit the model. Long work goes to a thread, off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...errors import InvalidParameter, PromptTooLong, RequestRejected, UnknownModel
from ...grammar.tools import Tool
from ...types import Segment
from .errors import named
from .recall import Recall
from .schemas import CompletionRequest, Message
from .services import Services, Text
from .tool_use import ToolUse

T = TypeVar("T")

INLINE_CHARACTERS = 8_000
"""Up to so much text is encoded on the event loop (about a millisecond); more would hold up other streams."""

HUGE_CHARACTERS = 200_000
"""From here on a text takes a hundred times its size in memory while it is encoded, so only one at a time is."""

_one_at_a_time = ThreadPoolExecutor(1, "huge-texts")

QUICK_S = 0.02
"""Processor time within which a short conversation is rendered by a template that is called quick."""

RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


class Prompt(NamedTuple):
    """`text` is what `echo` sends back when the prompt was given as text; None when it was given as ids."""

    ids: list[int]
    text: str | None


class Turn(NamedTuple):
    """How the conversation goes on after the last message."""

    add_generation_prompt: bool
    continue_final_message: bool


def check_model(services: Services, text: Text, name: str | None) -> str:
    """The name that the answer carries. Raises UnknownModel."""
    served = services.model_name(text)
    if name is None or name in (served, text.info.name):
        return served
    raise UnknownModel(f"model: there is no model {name[:128]!r} here, only {served!r}", "model")


def turn(messages: Sequence[Message], add: bool | None, go_on: bool | None) -> Turn:
    """Defaults of the two switches, and their contradictions."""
    if go_on and add:
        field = "continue_final_message"
        raise InvalidParameter(f"{field}: not together with add_generation_prompt", field)
    if go_on and (messages[-1].role != "assistant" or messages[-1].content is None):
        field = f"messages[{len(messages) - 1}].role"
        raise InvalidParameter(f"{field}: continue_final_message needs a last message from the assistant", field)
    return Turn(add_generation_prompt=not go_on if add is None else add, continue_final_message=bool(go_on))


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates know them: `developer` is `system`, absent fields are absent, a refusal is a text."""
    plain = []
    for message in messages:
        content: str | list[dict[str, str]]
        if isinstance(message.content, list):
            content = [{"type": "text", "text": part.text} for part in message.content]
        else:
            content = message.content if message.content is not None else message.refusal or ""
        entry: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
        for name in ("name", "tool_call_id", "reasoning_content"):
            value = getattr(message, name)
            if value is not None:
                entry[name] = value
        if message.tool_calls:
            entry["tool_calls"] = [call.model_dump(exclude={"index"}, exclude_none=True) for call in message.tool_calls]
        plain.append(entry)
    return plain


async def render(
    text: Text,
    messages: Sequence[Message],
    how: Turn,
    extra: dict[str, Any] | None,
    tools: ToolUse,
    recall: Recall | None = None,
    *,
    to_fit: bool = True,
) -> tuple[list[Segment], list[int]]:
    """The rendered conversation, with the tools that the model is told of, and its ids; with `recall`, those of turns
    that were generated are the generated ones. Raises TemplateFailed, InvalidParameter and, with `to_fit`,
    PromptTooLong for one that is far too long; whether the others fit is for the caller to see."""
    check_extra(extra)
    plain = plain_messages(messages)
    size = sum(map(_characters, messages)) + sum(map(_length, tools.tools))
    short = size <= INLINE_CHARACTERS

    def rendered(messages: Sequence[Mapping[str, Any]]) -> list[Segment]:
        conversation, told = tools.told(text.tool_format, messages)
        return text.template.render(
            conversation,
            add_generation_prompt=how.add_generation_prompt,
            continue_final_message=how.continue_final_message,
            tools=told,
            extra=extra,
        )

    def work() -> tuple[list[Segment], list[int]]:
        began = time.thread_time()
        try:
            segments = rendered(plain)
        finally:
            if short:
                text.pace.quick = time.thread_time() - began < QUICK_S
        if to_fit:
            check_length(text, segments, "messages")
        if recall is None:
            return segments, text.tokenizer.encode_segments(segments, bos=False)
        return segments, recall.prompt(plain, segments, rendered)

    # A template may take seconds before it is stopped. One that has shown itself quick is spared the way to a thread.
    return await _run("messages", work, size, inline=short and text.pace.quick)


def check_extra(extra: dict[str, Any] | None) -> None:
    """Refuse variables for the template that are not the caller's to set."""
    for name in RESERVED:
        if extra and name in extra:
            field = f"chat_template_kwargs.{name}"
            raise InvalidParameter(f"{field}: this variable is set from the request itself", field)


async def encode(text: Text, segments: Sequence[Segment], field: str, *, bos: bool, load: int = 0) -> list[int]:
    """Token ids of raw text, with the model's start token if `bos` and the model has the habit. `load` counts the
    characters of the whole request, where this is only a part of it."""
    size = sum(len(segment.text) for segment in segments)
    start = bos and text.tokenizer.add_bos
    inline = max(size, load) <= INLINE_CHARACTERS
    return await _run(field, lambda: text.tokenizer.encode_segments(segments, bos=start), size, inline=inline)


async def completion_prompts(text: Text, body: CompletionRequest) -> list[Prompt]:
    """One Prompt for each that the body holds. Raises InvalidParameter and PromptTooLong."""
    entries = several(body.prompt)
    prompts = []
    load = sum(len(entry) for entry in entries if isinstance(entry, str))
    for index, entry in enumerate(entries):
        field = f"prompt[{index}]" if len(entries) > 1 else "prompt"
        if isinstance(entry, str):
            segment = Segment(entry, body.parse_special is not False)
            check_length(text, [segment], field)
            ids = await encode(text, [segment], field, bos=body.add_special_tokens is not False, load=load)
            prompts.append(Prompt(ids, entry))
        else:
            ids = entry
            check_ids(ids, text, field)
            prompts.append(Prompt(ids, None))
        if not ids:
            raise InvalidParameter(f"{field}: the prompt has no token to go on from", field)
        room_after(text, len(ids), field, scoring=body.max_tokens == 0)
    return prompts


def several(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The prompts that the field holds, one or many."""
    if isinstance(given, str):
        return [given]
    ids: list[int] = []
    entries: list[str | list[int]] = []
    for entry in given:
        if isinstance(entry, int):
            ids.append(entry)
        else:
            entries.append(entry)
    return [ids] if ids else entries


def check_ids(ids: Sequence[int], text: Text, field: str) -> None:
    """Every id is below the vocabulary's size."""
    if ids and max(ids) >= text.info.vocab_size:
        index = next(i for i, token in enumerate(ids) if token >= text.info.vocab_size)
        path = f"{field}[{index}]"
        raise InvalidParameter(f"{path}: {ids[index]} is no token id below {text.info.vocab_size}", path)


def check_length(text: Text, segments: Sequence[Segment], field: str) -> None:
    """Refuse, before any work is done for it, what cannot fit even if every token were the vocabulary's longest."""
    most = text.info.context_length * text.longest_token
    if sum(len(segment.text) for segment in segments) * 4 <= most:  # no character has more than four bytes
        return
    size = sum(len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments)
    if size > most:
        raise PromptTooLong(
            f"{field}: the prompt has {size} bytes; the model's context holds {text.info.context_length} tokens, "
            f"of at most {text.longest_token} bytes each",
            field,
        )


def room_after(text: Text, length: int, field: str, scoring: bool = False) -> int:
    """How many tokens still fit after a prompt of `length`; there must be room for one, unless it is only scored."""
    room = text.info.context_length - length
    if room < (0 if scoring else 1):
        raise PromptTooLong(
            f"{field}: the model's context holds {text.info.context_length} tokens, and the prompt alone has {length}",
            field,
        )
    return room


def _characters(message: Message) -> int:
    """About how long a message is; each counts for something, so that many empty ones are not short."""
    content = message.content or ""
    length = len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
    calls = sum(100 + len(call.function.name) + len(call.function.arguments) for call in message.tool_calls or ())
    return 100 + length + len(message.reasoning_content or "") + calls


def _length(tool: Tool) -> int:
    return 100 + len(tool.description) + len(msgspec.json.encode(tool.parameters))


async def _run(field: str, work: Callable[[], T], size: int, *, inline: bool) -> T:
    """The result of `work` on `size` characters, done here or in a thread."""
    if inline:
        return _checked(field, work)
    pool = _one_at_a_time if size > HUGE_CHARACTERS else None  # None: the loop's own threads
    return await asyncio.get_running_loop().run_in_executor(pool, _checked, field, work)


def _checked(field: str, work: Callable[[], T]) -> T:
    """The result of `work`; a rejection that names no field gets `field`."""
    try:
        return work()
    except RequestRejected as error:
        raise named(error, field) from error
