"""Tool calls: how each family of models writes them, the grammar that holds a model to it, the parser that reads it.

Knows nothing of requests, protocols, token ids or engines.
"""

from .base import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Format,
    FormatJson,
    Parsed,
    ParsedCall,
    Parser,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolChoice,
    check_tools,
)
from .default import call_text, result_text, tools_prompt
from .families import KNOWN, by_name, detect

__all__ = [
    "KNOWN",
    "ArgumentsDelta",
    "CallEnd",
    "CallStart",
    "Event",
    "Format",
    "FormatJson",
    "Parsed",
    "ParsedCall",
    "Parser",
    "ReasoningDelta",
    "TextDelta",
    "Tool",
    "ToolChoice",
    "by_name",
    "call_text",
    "check_tools",
    "detect",
    "result_text",
    "tools_prompt",
]
