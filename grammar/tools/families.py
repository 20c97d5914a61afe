"""Which format a model speaks: by name, or by what its chat template writes.

Only a template that takes `tools` decides; one that does not cannot state them, whatever its markers. Templates that
state a manner of calling which is not spoken here (calls as XML: Qwen3-Coder, GLM) get the default, so that the prompt
and the grammar agree.
"""

from __future__ import annotations

from collections.abc import Collection

from ...errors import ConfigError
from .base import Format
from .deepseek import DeepSeek, DeepSeek31
from .default import Default
from .gemma import FunctionGemma, GemmaCode
from .harmony import Harmony
from .hermes import Hermes
from .llama import Llama
from .mistral import MistralArgs, MistralList
from .pythonic import Pythonic

KNOWN: dict[str, Format] = {
    form.name: form
    for form in (
        Hermes(),
        Llama(),
        MistralList(),
        MistralArgs(),
        Pythonic(),
        DeepSeek(),
        DeepSeek31(),
        GemmaCode(),
        FunctionGemma(),
        Harmony(),
        Default(),
    )
}
"""Name → format."""

_OTHER_MANNERS = (
    "<function=", "<arg_key>", "<parameter name=", "<invoke name=", "<｜DSML｜", "<|tool_call>", "<tool_calls>[",
)  # fmt: skip

_MARKS = (
    ("<start_function_call>", "functiongemma"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("func_name1(", "pythonic"),
    ("tool_code", "gemma"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3"),
)
"""Marker → name, the more telling first."""


def by_name(name: str) -> Format:
    """Raises `ConfigError`, which lists the known ones."""
    if name not in KNOWN:
        raise ConfigError(f"there is no tool format {name!r}; known are {', '.join(sorted(KNOWN))}")
    return KNOWN[name]


def detect(template: str | None, special_tokens: Collection[str] = (), name: str | None = None) -> Format:
    """The format of a model with this chat template and these special tokens (their texts); `name` overrides.

    Special tokens decide where the template takes tools but shows no marker of its own.
    """
    if name is not None:
        return by_name(name)
    if template is None:
        return KNOWN["default"]
    if "<|channel|>" in template and "<|message|>" in template:
        return KNOWN["harmony"]  # its outputs have channels even where there are no tools
    if "tools" not in template or any(mark in template for mark in _OTHER_MANNERS):
        return KNOWN["default"]
    if "<｜tool▁calls▁begin｜>" in template:
        return KNOWN["deepseek_v3" if "```json" in template else "deepseek_v31"]
    for mark, found in _MARKS:
        if mark in template:
            return KNOWN[found]
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return KNOWN["llama3"]
    for mark, found in _MARKS:
        if mark in special_tokens:
            return KNOWN[found]
    return KNOWN["default"]
