"""How a model with some template calls tools, over a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.tool_calls import ToolManner

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ByteTokenizer:
    """Bytes are tokens; special strings come after them."""

    def __init__(self, specials: Sequence[str] = ()) -> None:
        self.specials = {text: 256 + i for i, text in enumerate(specials)}

    def id_of_special(self, text: str) -> int | None:
        return self.specials.get(text)

    def encode(self, text: str, *, specials: bool) -> list[int]:
        return [self.specials[text]] if specials and text in self.specials else list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        names = {token: text for text, token in self.specials.items()}
        return "".join(names[token] if token in names else chr(token) for token in ids)


def manner(template: str = CHATML, specials: Sequence[str] = ()) -> ToolManner:
    shown = ChatTemplate({"default": template}, {}, frozenset(specials), frozenset(specials))
    return ToolManner(shown, ByteTokenizer(specials))  # type: ignore[arg-type]
