"""Renders conversations by the model's chat template, into segments that tell the template's text from the users'.

The template is a program that came with the model; `template_sandbox` bounds it. What users wrote is kept from forging
what the template writes; `placeholders` does that. Here is which text gets how much protection:

* Everything that a caller gives is cleared of special tokens: contents, names, tool calls, schemas, variables.
* What comes from a user or a tool is also cleared of added tokens that the template itself writes, such as
  `<tool_call>` or `</think>`. In what the assistant wrote they are left, since the model wrote them and templates look
  for them; in system messages too, since those teach the format.
* `role` decides what the template writes, and some put it inside a control string. Unusual roles are protected whole.

Knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes

from ..errors import ConfigError, InvalidParameter, TemplateFailed
from ..types import Segment
from .placeholders import ControlStrings, Placeholders
from .template_limits import TemplateStopped
from .template_sandbox import Sandbox, TemplateRaised
from .tokenizer_files import read_tokenizer_files

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "human"))
_AUTHORS = frozenset(("system", "developer", "assistant", "model"))
"""Roles whose text may hold added tokens that are not special."""
_RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
_REASONING = ("reasoning_content", "thinking", "reasoning")
_MAX_DEPTH = 100

_Protect = Callable[[str], str]


class ChatTemplate:
    """The chat templates of a model folder.

    templates: Jinja sources by name; "default" is the usual one, "tool_use" is taken when there are tools
    named: texts of `bos_token`, `eos_token` and the like, which templates write
    special: control strings that no caller may write; controls: those and the ones that no user or tool may write
    """

    def __init__(
        self, templates: Mapping[str, str], named: Mapping[str, str], special: frozenset[str], controls: frozenset[str]
    ) -> None:
        self._templates = dict(templates)
        self._named = dict(named)
        self._special = ControlStrings(special)
        self._controls = ControlStrings(controls)
        self._compiled: dict[str, _Compiled] = {}

    @classmethod
    def from_folder(cls, folder: Path, override: str | Path | None = None) -> ChatTemplate:
        """Reads the folder's templates; one without any is all right until it is used.

        `override` takes the place of all: a file, or (as text) a Jinja source, the name of one of the folder's
        templates, or a file's path. Raises `ModelLoadError` and, for a wrong `override`, `ConfigError`.
        """
        files = read_tokenizer_files(folder)
        templates = files.templates
        if override is not None:
            source = _override(override, templates)
            templates = {"default": source}
            try:
                Sandbox(source)
            except (jinja2.TemplateError, RecursionError) as error:
                raise ConfigError(f"the chat template does not compile: {_place(error)}") from error
        return cls(templates, files.named, files.markers(), files.controls())

    @property
    def source(self) -> str | None:
        """The Jinja source that is taken when there are tools; None if the folder has none."""
        if "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()), None)

    @property
    def specials(self) -> frozenset[str]:
        """The control strings that no caller may write."""
        return self._special.texts

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """The conversation as the model sees it.

        `continue_final_message` ends the text right after the last message's content, for the model to go on with it;
        no generation prompt is added then. `extra` are further variables for the template.
        Raises `InvalidParameter` for messages of a wrong shape and `TemplateFailed` if the template refuses them, fails
        or has to be stopped. Takes up to `MAX_SECONDS` of processor time.
        """
        compiled = self._choose(bool(tools))
        conversation = _Conversation(compiled, self._special, self._controls)
        variables = {
            **self._named,
            **conversation.variables(extra),
            "messages": conversation.messages(messages),
            "tools": conversation.tools(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        end = conversation.mark_end(variables["messages"]) if continue_final_message else None
        text = _run(compiled.sandbox, variables, conversation.placeholders)
        if end is not None:
            text = end.cut(text)
        return conversation.placeholders.segments(text)

    def _choose(self, with_tools: bool) -> _Compiled:
        if not self._templates:
            raise TemplateFailed("this model has no chat template; use text completions, or give the server one")
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            if len(self._templates) > 1:
                known = ", ".join(sorted(self._templates))
                raise TemplateFailed(f"this model has several chat templates and no default: choose one of {known}")
            name = next(iter(self._templates))
        if name not in self._compiled:
            try:
                self._compiled[name] = _Compiled(self._templates[name])
            except (jinja2.TemplateError, RecursionError) as error:
                raise TemplateFailed(f"the chat template does not compile: {_place(error)}") from error
        return self._compiled[name]


class _Compiled:
    """One template. `wants_parts`: it goes through the parts of a content, and does not ask whether it is a text."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sandbox = Sandbox(source)
        tree = self.sandbox.tree
        loops = any(_names(node.iter) == "content" for node in tree.find_all(nodes.For))
        self.wants_parts = loops and not any(test.name == "string" for test in tree.find_all(nodes.Test))


class _End:
    """Where the last message's content ends: a mark after it, then a blank that shows whether the template trims."""

    def __init__(self, mark: str, content: str) -> None:
        self.marked = f"{content}{mark} "
        self._mark = mark
        self._blanks = len(content) - len(content.rstrip())

    def cut(self, text: str) -> str:
        place = text.rfind(self._mark)
        if place < 0:
            raise TemplateFailed(
                "the chat template does not show the last message, so it cannot be continued", "messages"
            )
        trimmed = text[place + 1 : place + 2] != " "
        return text[: place - self._blanks if trimmed else place].replace(self._mark, "")


class _Conversation:
    """Turns what a caller gives into what a template is given: copies, of nothing but plain values."""

    def __init__(self, compiled: _Compiled, special: ControlStrings, controls: ControlStrings) -> None:
        self.placeholders = Placeholders(compiled.source)
        self._wants_parts = compiled.wants_parts
        self._special = special
        self._controls = controls

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not messages:
            raise InvalidParameter("messages: there is none", "messages")
        return [self._message(message, f"messages[{i}]") for i, message in enumerate(messages)]

    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
        if tools is None:
            return None
        for i, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise InvalidParameter(f"tools[{i}]: not an object", f"tools[{i}]")
        return [self._plain(tool, self._from_anyone, f"tools[{i}]") for i, tool in enumerate(tools)]

    def variables(self, extra: Mapping[str, Any] | None) -> dict[str, Any]:
        for name in extra or ():
            if name in _RESERVED:
                field = f"chat_template_kwargs.{name}"
                raise InvalidParameter(f"{field}: this variable is set by the conversation", field)
        plain = self._plain(dict(extra or {}), self._from_author, "chat_template_kwargs")
        assert isinstance(plain, dict)
        return plain

    def mark_end(self, messages: list[dict[str, Any]]) -> _End:
        field = f"messages[{len(messages) - 1}]"
        last = messages[-1]
        content = last.get("content")
        if last["role"] != "assistant":
            raise InvalidParameter(f"{field}.role: only a message of the assistant can be continued", f"{field}.role")
        if isinstance(content, list) and content:
            holder, key = content[-1], "text"
        else:
            holder, key = last, "content"
        if not isinstance(holder.get(key), str):
            raise InvalidParameter(f"{field}.content: there is no text to continue", f"{field}.content")
        end = _End(self.placeholders.reserve(), holder[key])
        holder[key] = end.marked
        return end

    def _from_anyone(self, text: str) -> str:
        return self.placeholders.protect(text, self._controls)

    def _from_author(self, text: str) -> str:
        return self.placeholders.protect(text, self._special)

    def _message(self, message: Mapping[str, Any], field: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise InvalidParameter(f"{field}: not an object", field)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidParameter(f"{field}.role: missing or not a text", f"{field}.role")
        protect = self._from_author if role in _AUTHORS else self._from_anyone
        given: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
        reasoning = next((given[name] for name in _REASONING if name in given), None)
        if reasoning is not None:  # templates look for it under different names
            given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
        if "content" in given:
            given["content"] = self._content(given["content"], f"{field}.content")
        if "tool_calls" in given:
            given["tool_calls"] = _with_parsed_arguments(given["tool_calls"], f"{field}.tool_calls")
        plain: dict[str, Any] = self._plain(given, protect, field)
        plain["role"] = role if role in _ROLES else self.placeholders.protect_whole(role, self._controls)
        return plain

    def _content(self, content: Any, field: str) -> Any:
        """One text, or the parts, as the template wants it."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self._wants_parts else content
        if not isinstance(content, Sequence):
            raise InvalidParameter(f"{field}: neither a text nor a list of parts", field)
        for i, part in enumerate(content):
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InvalidParameter(f"{field}[{i}]: not a part of type 'text' with a text", f"{field}[{i}]")
        return list(content) if self._wants_parts else "\n".join(part["text"] for part in content)

    def _plain(self, value: Any, protect: _Protect, field: str, depth: int = 0) -> Any:
        """A copy out of plain values, texts and keys protected; what stands under `type` names a kind, not a text."""
        if isinstance(value, str):
            return protect(str(value))
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if depth > _MAX_DEPTH:
            raise InvalidParameter(f"{field}: more than {_MAX_DEPTH} levels deep", field)
        if isinstance(value, Mapping):
            return {
                self._key(key, field): self._plain(item, self._kind if key == "type" else protect, field, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._plain(item, protect, field, depth + 1) for item in value]
        raise InvalidParameter(f"{field}: holds a {type(value).__name__}, which is no JSON value", field)

    def _key(self, key: Any, field: str) -> str:
        if not isinstance(key, str):
            raise InvalidParameter(f"{field}: holds a key that is not a text", field)
        return self._kind(key)

    def _kind(self, text: str) -> str:
        """Templates look for keys and kinds, so only whole control strings are hidden in them."""
        return self.placeholders.protect_inside(text, self._controls)


def _run(sandbox: Sandbox, variables: Mapping[str, Any], placeholders: Placeholders) -> str:
    try:
        return sandbox.render(variables, placeholders.rewrite_json)
    except InvalidParameter:
        raise
    except TemplateRaised as error:
        raise TemplateFailed(f"the chat template refuses this conversation: {error}", "messages") from error
    except TemplateStopped as error:
        raise TemplateFailed(f"the chat template was stopped: {error}", "messages") from error
    except Exception as error:  # a template is a program, and may run into anything
        raise TemplateFailed(f"the chat template failed: {type(error).__name__}: {error}", "messages") from error


def _with_parsed_arguments(calls: Any, field: str) -> list[Any]:
    """Templates want arguments as an object; the protocol sends them as JSON text. What is no JSON object is left."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidParameter(f"{field}: not a list of objects", field)
    parsed = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                call = {**call, "function": {**function, "arguments": arguments}}
        parsed.append(call)
    return parsed


def _override(override: str | Path, templates: Mapping[str, str]) -> str:
    if isinstance(override, str):
        if "{{" in override or "{%" in override:
            return override
        if override in templates:
            return templates[override]
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {str(override)!r} cannot be read: {error}") from error


def _place(error: Exception) -> str:
    line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{line}{error}"


def _names(node: nodes.Node) -> str | None:
    """The last name in `b`, `a.b` or `a['b']`."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value if isinstance(node.arg.value, str) else None
    return None
