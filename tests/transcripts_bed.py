"""A server with a real tokenizer and template over a scripted engine, for the tests of echoed turns.

The model cuts words otherwise than the tokenizer would: what it says comes letter by letter. So a prompt shows which of
its turns are the tokens that were generated.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from fakes_engine import FakeEngine, info
from template_samples import ADDED, QWEN3
from tokenizer_samples import CHATML, CHATML_SPECIALS, byte_level
from tokenizers import AddedToken

from bosquet.grammar import reasoning
from bosquet.grammar.tools import detect
from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.flat_text import flat, flat_ids
from bosquet.runtime.server.services import Services, Text, TextServices
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.text_stream import TextStream
from bosquet.runtime.tokenizer import Tokenizer
from bosquet.types import Request, Segment

END = "<|im_end|>"
Message = dict[str, Any]


@cache
def text_of(
    template: str = CHATML, specials: tuple[str, ...] = CHATML_SPECIALS, added: tuple[str, ...] = (), end: str = END
) -> Text:
    """The text side of a model with these control tokens, the last of which ends an answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = byte_level(specials=specials)
        library.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
        library.save(str(folder / "tokenizer.json"))
        config = {"chat_template": template, "eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return text_in(folder, template, end)


def text_in(folder: Path, template: str, end: str) -> Text:
    """That of a model folder."""
    tokenizer = Tokenizer.from_folder(folder)
    shown = ChatTemplate.from_folder(folder, template)

    def stream(stop: Sequence[bytes], specials: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=specials)

    ends = tuple(token for token in [tokenizer.id_of_special(end)] if token is not None)
    facts = info(vocab_size=tokenizer.size, end_ids=ends, context_length=1 << 16)
    return Text(tokenizer, shown, facts, stream, detect(template, shown.specials), reasoning.detect(template))


class Bed:
    """One server. `say` is what the model says next, one text a choice, as ids or as text."""

    def __init__(self, text: Text | None = None, **config: Any) -> None:
        self.text = text or text_of()
        self.tokenizer: Any = self.text.tokenizer
        self.answers: list[list[int]] = [[]]
        self.engine = FakeEngine(
            self._script, tokenizer=self.tokenizer, end_ids=self.text.info.end_ids, vocab_size=self.tokenizer.size,
            context_length=self.text.info.context_length, pieces=(3, 1, 2),
        )  # fmt: skip
        app = create_app(self.engine, TextServices(self.text), ServerConfig(**config))
        services: Services = app.state.services
        self.store = services.transcripts
        self._runner = asyncio.Runner()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def say(self, *answers: str | Sequence[int]) -> None:
        self.answers = [self.letters(one) if isinstance(one, str) else list(one) for one in answers]

    def letters(self, text: str) -> list[int]:
        """A token a letter, and control tokens where the text has them."""
        ids: list[int] = []
        for piece, control in self.tokenizer.split_controls([Segment(text, True)]):
            for part in [piece] if control else piece:
                ids += self.tokenizer.encode_segments([Segment(part, control)])
        return ids

    def ask(self, messages: Sequence[Message], key: str = "", **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"messages": list(messages), **fields}
        response = self._runner.run(self._client.post("/v1/chat/completions", json=body, headers=headers))
        assert response.status_code == 200, response.text
        return response

    def turn(self, messages: Sequence[Message], answer: str | Sequence[int], **fields: Any) -> Message:
        """The message that comes when the model says this."""
        self.say(answer)
        message = self.ask(messages, **fields).json()["choices"][0]["message"]
        return {key: value for key, value in message.items() if key != "refusal" and value is not None}

    @property
    def request(self) -> Request:
        """The last one that the engine has had."""
        return self.engine.requests[-1]

    @property
    def prompt(self) -> list[int]:
        return self.request.ids

    @property
    def shown(self) -> str:
        """The prompt's text, control tokens told apart from text."""
        shown = flat_ids(self.prompt, self.tokenizer)
        assert shown is not None
        return shown

    def plain(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The ids of what the template makes of the messages."""
        return self.tokenizer.encode_segments(self._rendered(messages, **options))

    def rendered(self, messages: Sequence[Message], **options: Any) -> str:
        """That text, as `shown` has it."""
        shown = flat(self._rendered(messages, **options), self.tokenizer)
        assert shown is not None
        return shown

    def _rendered(self, messages: Sequence[Message], **options: Any) -> list[Segment]:
        go_on = options.pop("continue_final_message", False)
        given = [{"content": "", **message} for message in messages]
        return self.text.template.render(
            given, add_generation_prompt=not go_on, continue_final_message=go_on,
            tools=options.pop("tools", None), extra=options or None,
        )  # fmt: skip

    def _script(self, request: Request, choice: int) -> list[int]:
        return [*self.answers[choice % len(self.answers)], *self.text.info.end_ids]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def calling(message: Message, *arguments: str) -> Message:
    """The message with the arguments of its calls written so."""
    calls = [
        {**call, "function": {**call["function"], "arguments": text}}
        for call, text in zip(message["tool_calls"], arguments, strict=True)
    ]
    return {**message, "tool_calls": calls}


HI = [user("The quick brown fox?")]
ANSWER = "jumps over the lazy dog"
MORE = user("and the other fox?")
THINKING = text_of(QWEN3, added=ADDED["qwen3"])
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}]
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


def plain(text: str) -> Segment:
    return Segment(text, False)


def live(bed: Bed, answer: str) -> list[int]:
    """The last prompt and what was generated after it, but for the end token."""
    return bed.prompt + bed.letters(answer)


def carried(response: Any) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"].get("transcript_tokens", 0))
