"""A deterministic token backend for tests of the language: a toy tokenizer, toy templates, a toy model.

The tokenizer merges neighbouring characters, so that encoding two texts apart differs from encoding them as one; what
is not ASCII is several tokens a character. The model is a pure function of the prompt's ids, or follows a script.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bosquet.errors import TemplateFailed
from bosquet.lang import TOKEN_CAPABILITIES, State, gen, program
from bosquet.types import Call, Chunk, GrammarSpec, Origin, Relaxed, Segment, TokenLogprob, ToolCall, ToolSpec

MERGES = ["ab", "abc", "ca", "the", " the", ". ", "\n\n", "aa", "aaaa", "is ", "er", "\n<", "user\n", "x\n"]
SPECIAL = {"<s>": 1000, "<|im_start|>": 1001, "<|im_end|>": 1002, "<|endoftext|>": 1003}
END, TEXT_END = SPECIAL["<|im_end|>"], SPECIAL["<|endoftext|>"]
WORDS = [*MERGES, "a", "b", "c", " ", "x", ".", "\n"]
_SPECIAL_NAMES = {token: name for name, token in SPECIAL.items()}


def token_bytes(token: int) -> bytes:
    if token >= 1000:
        return b""
    return MERGES[token - 256].encode() if token >= 256 else bytes([token])


def encode_text(text: str) -> list[int]:
    """Longest merge first, from the left."""
    ids: list[int] = []
    place = 0
    while place < len(text):
        merge = max((m for m in MERGES if text.startswith(m, place)), key=len, default=None)
        if merge is None:
            ids += text[place].encode()
            place += 1
        else:
            ids.append(256 + MERGES.index(merge))
            place += len(merge)
    return ids


def encode_segments(segments: Sequence[Segment]) -> list[int]:
    """Special strings split the text where `control` allows it; all that stands between them is one text."""
    ids: list[int] = []
    text = ""
    for segment in segments:
        rest = segment.text
        while rest:
            hits = [(rest.find(name), name) for name in SPECIAL if segment.control and name in rest]
            if not hits:
                text += rest
                break
            place, name = min(hits)
            ids += encode_text(text + rest[:place])
            ids.append(SPECIAL[name])
            text, rest = "", rest[place + len(name) :]
    return ids + encode_text(text)


def decode(ids: Sequence[int]) -> str:
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


# -- templates --------------------------------------------------------------------------------------------------------

Template = Callable[[Sequence[dict[str, Any]], bool], list[Segment]]


def chatml(messages: Sequence[dict[str, Any]], prompt: bool) -> list[Segment]:
    out: list[Segment] = []
    for message in messages:
        out += [Segment(f"<|im_start|>{message['role']}\n", True), Segment(message["content"], False)]
        out.append(Segment("<|im_end|>\n", True))
    return [*out, Segment("<|im_start|>assistant\n", True)] if prompt else out


def folding(messages: Sequence[dict[str, Any]], prompt: bool) -> list[Segment]:
    """A system turn is shown inside the first user turn; roles must alternate; texts are trimmed."""
    out = [Segment("<s>", True)]
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    for i, message in enumerate(messages[system is not None :]):
        if message["role"] != ("user", "assistant")[i % 2]:
            raise TemplateFailed("roles must alternate")
        out.append(Segment(f"<|im_start|>{message['role']}\n", True))
        if i == 0 and system is not None:
            out += [Segment(system.strip(), False), Segment("\n\n", True)]
        out += [Segment(message["content"].strip(), False), Segment("<|im_end|>\n", True)]
    return [*out, Segment("<|im_start|>assistant\n", True)] if prompt else out


def thinking(messages: Sequence[dict[str, Any]], prompt: bool) -> list[Segment]:
    """An assistant turn that is last gets an empty thought, an earlier one none, as in Qwen 3."""
    out: list[Segment] = []
    for i, message in enumerate(messages):
        last = message["role"] == "assistant" and i == len(messages) - 1
        thought = "<think>\n\n</think>\n\n" if last else ""
        out += [Segment(f"<|im_start|>{message['role']}\n{thought}", True), Segment(message["content"], False)]
        out.append(Segment("<|im_end|>\n", True))
    return [*out, Segment("<|im_start|>assistant\n", True)] if prompt else out


def rewriting(messages: Sequence[dict[str, Any]], prompt: bool) -> list[Segment]:
    """Counts the turns at the top, so that each new turn changes what came before."""
    return [Segment(f"{len(messages) + prompt} turns\n", True), *chatml(messages, prompt)]


# -- the model --------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """A whole generation: `cut` bytes of it are the text, the rest is the stop string and what came with it."""

    ids: list[int]
    cut: int
    finish: str
    stop: str | int | None

    @property
    def text(self) -> str:
        return b"".join(map(token_bytes, self.ids))[: self.cut].decode("utf-8", "replace")


def draw(*key: Any) -> int:
    """A number that depends on the key alone."""
    return zlib.crc32(repr(key).encode())


def continuation(ids: Sequence[int], at_most: int) -> list[int]:
    """What the toy model says after `ids`: some words, then perhaps an end token."""
    out: list[int] = []
    while len(out) < at_most:
        number = draw(tuple(ids), tuple(out))
        if number % 7 == 0 and out:
            out.append(END)
            break
        out += encode_text(WORDS[number % len(WORDS)])
    return out[:at_most]


def generation(wanted: Sequence[int], stops: Sequence[bytes], at_most: int) -> Made:
    """Of the `wanted` tokens, those up to the first stop string, end token or limit."""
    out: list[int] = []
    said = b""
    for token in wanted:
        out.append(token)
        if token in (END, TEXT_END):
            return Made(out, len(said), "stop", token)
        said += token_bytes(token)
        hits = [(said.find(stop), stop) for stop in stops if stop in said]
        if hits:
            place, stop = min(hits)
            return Made(out, place, "stop", stop.decode())
        if len(out) == at_most:
            break
    return Made(out, len(said), "length", None)


def score(ids: Sequence[int], choice: Sequence[int]) -> list[float]:
    return [-(1 + draw("score", tuple(ids), tuple(choice[: i + 1])) % 500) / 100 for i in range(len(choice))]


@dataclass(eq=False)
class FakeBackend:
    """`script` maps a step to what the model is to say there (a text, or a list of texts used in turn, or an exception
    to be raised); steps that are not in it get the toy model's words. `pause` seconds pass before each token, and none
    comes while `held`. Calls of tools are written as `written` says. `relaxed` is said with the first chunk of what has
    a grammar."""

    template: Template = chatml
    script: dict[str, Any] = field(default_factory=dict)
    pause: float = 0.0
    held: bool = False
    bos: bool = False
    capabilities: frozenset[str] = TOKEN_CAPABILITIES
    relaxed: tuple[Relaxed, ...] = ()
    calls: list[Call] = field(default_factory=list)
    encoded: list[list[Segment]] = field(default_factory=list)
    rendered: list[list[dict[str, Any]]] = field(default_factory=list)
    scored: list[tuple[Sequence[int], Sequence[Sequence[int]]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    active: int = 0
    most_active: int = 0
    cancelled: int = 0
    _seen: list[tuple[int, ...]] = field(default_factory=list)

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        self.encoded.append(list(segments))
        return encode_segments(segments)

    async def decode(self, ids: Sequence[int]) -> str:
        return decode(ids)

    async def text_start(self) -> list[int]:
        return [SPECIAL["<s>"]] if self.bos else []

    async def render(
        self, messages: Sequence[Any], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        self.rendered.append(list(messages))
        return told(tools) + self.template(messages, add_generation_prompt)

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        finished = False
        try:
            made = self.answer(call)
            cached = self._cached(call.ids)
            relaxed = self.relaxed if call.grammar or call.tools else ()
            said, calls = spoken(made.text, f"{call.origin.step}{len(self.calls)}") if call.tools else (made.text, [])
            shown = whole = ""
            for ids, text, last in pieces(made):
                await asyncio.sleep(self.pause)
                while self.held:
                    await asyncio.sleep(0.001)
                logprobs = [TokenLogprob(token, -1.0) for token in ids if token < 1000]
                content = said[len(shown) : len(shown) + len(text)] if call.tools else None
                shown += content or ""
                tokens = "tokens" in self.capabilities
                chunk = Chunk(text if tokens or content is None else content, ids, logprobs=logprobs, relaxed=relaxed)
                relaxed = ()
                if tokens:
                    chunk = chunk._replace(content=content)
                if call.reasoning:
                    whole += text
                    answered, thought = reasoned(made.text, whole, text)
                    chunk = chunk._replace(reasoning=thought, **{"content" if tokens else "text": answered})
                if last:
                    finished = True
                    self._seen.append((*call.ids, *made.ids))
                    counts = {
                        "prompt_tokens": len(call.ids),
                        "completion_tokens": len(made.ids),
                        "cached_tokens": cached,
                    }
                    chunk = chunk._replace(finish=made.finish, stop=made.stop, calls=calls, **counts)  # type: ignore[arg-type]
                yield chunk
        finally:
            self.active -= 1
            self.cancelled += not finished

    async def end(self, run: str) -> None:
        self.ended.append(run)

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        assert ids, "position 0 has no predecessor"
        self.scored.append((ids, choices))
        await asyncio.sleep(self.pause)
        return [score(ids, choice) for choice in choices]

    def answer(self, call: Call) -> Made:
        """What the model makes of the call."""
        params = call.sampling
        said = self.script.get(call.origin.step)
        if isinstance(said, list):
            said = said.pop(0)
        if isinstance(said, Exception):
            raise said
        if said is None and call.grammar is not None:
            said = obedient(call.grammar, call.ids)
        wanted = continuation(call.ids, params.max_tokens) if said is None else [*encode_text(said), END]
        return generation(wanted, params.stop, params.max_tokens)

    def _cached(self, ids: Sequence[int]) -> int:
        """Tokens of the prompt that an engine would have: the longest beginning shared with anything before, less the
        last token, which is always computed."""
        best = 0
        for seen in self._seen:
            shared = next(
                (i for i, (a, b) in enumerate(zip(seen, ids, strict=False)) if a != b), min(len(seen), len(ids))
            )
            best = max(best, shared)
        return min(best, len(ids) - 1)


def reasoned(text: str, so_far: str, piece: str) -> tuple[str, str]:
    """What of the piece that ends `so_far` is answered and what is thought: all up to "</think>", where that comes."""
    end = text.find("</think>")
    places = range(len(so_far) - len(piece), len(so_far))
    if end < 0:
        return piece, ""
    answer = end + len("</think>")
    return "".join(text[at] for at in places if at >= answer), "".join(text[at] for at in places if at < end)


def told(tools: Sequence[ToolSpec]) -> list[Segment]:
    """What the toy templates say of tools, at the very beginning."""
    return [Segment(f"tools: {', '.join(tool.name for tool in tools)}\n", True)] if tools else []


def written(name: str, **arguments: Any) -> str:
    """A call, as the toy model writes it."""
    return f"<<{name} {json.dumps(arguments)}>>"


def spoken(text: str, prefix: str) -> tuple[str, list[ToolCall]]:
    """The text without calls, and the calls."""
    parts = text.split("<<")
    calls = []
    for part in parts[1:]:
        name, _, arguments = part.partition(" ")
        if arguments.endswith(">>"):
            calls.append(ToolCall(f"{prefix}.{len(calls)}", name, arguments.removesuffix(">>")))
    return parts[0], calls


def pieces(made: Made) -> list[tuple[list[int], str, bool]]:
    """The generation in pieces (ids, text, last); a character is held back until all of its tokens are there."""
    out: list[tuple[list[int], str, bool]] = []
    held: list[int] = []
    at = shown = 0
    for i, token in enumerate(made.ids):
        last = i == len(made.ids) - 1
        held.append(token)
        at += len(token_bytes(token))
        fresh = b"".join(map(token_bytes, made.ids[: i + 1]))[shown : min(at, made.cut)]
        text = fresh.decode("utf-8", "replace")
        if last or "\ufffd" not in text:
            out.append((held, text, last))
            held, shown = [], shown + len(fresh)
    return out


def obedient(grammar: GrammarSpec, ids: Sequence[int]) -> str:
    """A text that the grammar allows, for the kinds that tests use without a script."""
    if grammar.kind == "choice":
        choices = json.loads(grammar.value)
        return str(choices[draw(tuple(ids)) % len(choices)])
    if grammar.kind == "json_object":
        return "{}"
    raise AssertionError(f"script what the model says to {grammar}")


# -- programs that several tests use ----------------------------------------------------------------------------------


@program
def echo(s: State, topic: str) -> Any:
    """Say it back."""
    s.user(topic)
    s.assistant(gen("reply"))
    return s["reply"]


@program
async def aecho(s: State, topic: str) -> Any:
    s.user(topic)
    s.assistant(gen("reply"))
    return await s.get("reply")


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does; fails after half a minute."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)
