"""What `bench speculation` asks: structured answers, transcripts that are replayed, text that is hard to draft.

Each case makes its asks for one model. Knows nothing of engines, passes or figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from ...errors import ConfigError
from ...grammar.base import Compiled
from ...types import GrammarSpec, Message, SamplingParams, ToolSpec, ToolUse
from ..templates import ChatTemplate
from ..tokenizer import Tokenizer
from ..tool_calls import ToolManner
from .record_schema import SCHEMA
from .words import WORDS, text
from .workloads import GROUPS, Script

SEED = "bosquet bench speculation 1"
EDITS = Path(__file__).with_name("edits.jsonl")
"""Conversations made of this project's own history (benchmarks/speculation_transcripts.py)."""

REPLAYED = 2400
"""Tokens of transcripts of one kind."""

GREEDY = SamplingParams(temperature=0, max_tokens=200)


class Ask(NamedTuple):
    """One request. With `dictated` these are the tokens of its answer, whatever the model would say."""

    ids: Sequence[int]
    sampling: SamplingParams
    grammar: Compiled | None = None
    dictated: Sequence[int] | None = None


class Compiler(Protocol):
    def compile(self, spec: GrammarSpec) -> Compiled: ...


@dataclass(frozen=True, slots=True)
class Speech:
    """What turns words into tokens and rules into grammars."""

    tokenizer: Tokenizer
    template: ChatTemplate
    compiler: Compiler

    def chat(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode_segments(self.template.render(messages, add_generation_prompt=True))

    def words(self, said: str) -> list[int]:
        return self.tokenizer.encode(said, specials=False)


Asks = Callable[[Speech, int], list[Ask]]
"""So many asks."""


@dataclass(frozen=True, slots=True)
class Case:
    """`count` asks (of transcripts: tokens), `few` of them where time is short, `at_once` in flight. `bound` is the
    least speed-up that the project wants, `from_forced` the share of forced tokens from which it wants that."""

    name: str
    about: str
    asks: Asks
    count: int
    few: int
    at_once: int = 1
    bound: float | None = None
    from_forced: float = 0.0
    rounds: int = 99
    """At most."""

    @property
    def full_name(self) -> str:
        return f"{self.name}, {self.at_once} streams" if self.at_once > 1 else self.name


# ---- structured ----------------------------------------------------------------------------------------------------


def records(speech: Speech, count: int) -> list[Ask]:
    """The JSON workload of `bosquet bench`."""
    (workload,) = GROUPS["json"]
    grammar = speech.compiler.compile(GrammarSpec("json_schema", json.dumps(SCHEMA)))
    scripts = [script for script in workload.draw(0, False) if isinstance(script, Script)]
    openings = [script.opening for script in scripts if not isinstance(script.opening, str)]
    return [Ask(speech.chat(opening), GREEDY, grammar) for opening in openings[:count]]


def _one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


_THERMOSTAT = {
    "room_name": _one_of("kitchen", "living room", "bedroom", "office"),
    "target_temperature_celsius": {"type": "integer", "minimum": 5, "maximum": 30},
    "heating_mode": _one_of("eco", "comfort", "away"),
    "starts_after_minutes": {"type": "integer", "minimum": 0, "maximum": 600},
    "notify_household_members": {"type": "boolean"},
}
_REMINDER = {
    "reminder_category": _one_of("shopping", "medication", "appointment", "birthday"),
    "repeats_every": _one_of("never", "day", "week", "month"),
    "hour_of_the_day": {"type": "integer", "minimum": 0, "maximum": 23},
    "is_high_priority": {"type": "boolean"},
}


def _tool(name: str, about: str, properties: dict[str, Any]) -> ToolSpec:
    closed = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name, about, json.dumps(closed), strict=True)


TOOLS = (
    _tool("set_thermostat_schedule", "Heats a room.", _THERMOSTAT),
    _tool("create_household_reminder", "Reminds everybody at home.", _REMINDER),
)


def tool_calls(speech: Speech, count: int) -> list[Ask]:
    """One call each, of one of two tools."""
    random = Random(f"{SEED}/tools")
    manner = ToolManner(speech.template, speech.tokenizer)
    asks = []
    for _ in range(count):
        message = Message(role="user", content=f"Do what this note asks for: {text(random, 24)}")
        ids = speech.tokenizer.encode_segments(manner.render([message], TOOLS, True))
        grammar = speech.compiler.compile(manner.grammar(ToolUse(TOOLS, "required", parallel=False), ids))
        asks.append(Ask(ids, GREEDY, grammar))
    return asks


def _form(indent: str, fields: dict[str, str]) -> str:
    """A regular expression of a JSON object, one line a field; `fields` are names and expressions of their values."""
    lines = (rf'{indent}"{name}": {value}' for name, value in fields.items())
    return r"\{\n" + r",\n".join(lines) + r"\n\}"


_SHORT = r'"[\w\d\s]{1,16}"'
CITY = _form(
    "  ",
    {
        "name": _SHORT,
        "country": _SHORT,
        "latitude": r"[-+]?[0-9]*\.?[0-9]{0,2}",
        "population": r"[-+]?[0-9]{1,9}",
        "top 3 landmarks": rf"\[{_SHORT}, {_SHORT}, {_SHORT}\]",
    },
)
CHARACTER = _form(
    "    ",
    {
        "name": _SHORT,
        "house": '"(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)"',
        "blood status": '"(Pure-blood|Half-blood|Muggle-born)"',
        "occupation": '"(student|teacher|auror|ministry of magic|death eater|order of the phoenix)"',
        "wand": r"\{\n"
        + r",\n".join(
            rf'        "{name}": {value}'
            for name, value in (("wood", _SHORT), ("core", _SHORT), ("length", r"[0-9]{1,2}\.[0-9]{0,2}"))
        )
        + r"\n    \}",
        "alive": '"(Alive|Deceased)"',
        "patronus": _SHORT,
        "bogart": _SHORT,
    },
)
"""Forms of the shape of SGLang's json_jump_forward benchmark (Zheng et al., 2024, section 4)."""

_CITIES = (
    "Lisbon is the capital of Portugal. It lies at 38.71 degrees north, on the mouth of the Tagus, and has 545 "
    "thousand people. Visitors see the tower of Belém, the castle of São Jorge and the Santa Justa lift.",
    "Kyoto was the capital of Japan for a thousand years. At 35.01 degrees north, it has 1.46 million people, and is "
    "known for the golden pavilion, the shrine of Fushimi Inari and the castle of Nijo.",
    "Nairobi, the capital of Kenya, lies just south of the equator, at 1.29 degrees, and has 4.4 million people. A "
    "national park begins at its edge; the railway museum and Uhuru gardens draw many.",
    "Quito in Ecuador is the highest of all capitals but one. It lies at 0.22 degrees south, with 2 million people "
    "around the church of La Compañía, the hill of El Panecillo and the basilica.",
    "Edinburgh, at 55.95 degrees north, is the capital of Scotland in the United Kingdom. Its 530 thousand people "
    "live around the castle, Holyrood palace and the hill that is called Arthur's seat.",
    "Toronto is the largest city of Canada, with 2.8 million people at 43.65 degrees north. The CN tower, Casa Loma "
    "and the Royal Ontario museum are seen by most who come.",
)
_NAMES = ("Harry Potter", "Hermione Granger", "Ron Weasley", "Severus Snape", "Luna Lovegood", "Draco Malfoy")


def cities(speech: Speech, count: int) -> list[Ask]:
    prompts = (f"Read this text about a city.\n{page}\nWhat it says, as JSON:\n" for page in _CITIES)
    return _filled(speech, CITY, prompts, count)


def characters(speech: Speech, count: int) -> list[Ask]:
    prompts = (f"{name} is one of the people in Harry Potter. Fill in what is known about them.\n" for name in _NAMES)
    return _filled(speech, CHARACTER, prompts, count)


def _filled(speech: Speech, form: str, prompts: Any, count: int) -> list[Ask]:
    grammar = speech.compiler.compile(GrammarSpec("regex", form))
    known = list(prompts)
    numbered = [
        f"{known[i % len(known)]}" if i < len(known) else f"({i}) {known[i % len(known)]}" for i in range(count)
    ]
    return [Ask(speech.words(prompt), GREEDY, grammar) for prompt in numbered]


# ---- transcripts ---------------------------------------------------------------------------------------------------


class Conversation(NamedTuple):
    kind: str
    messages: tuple[Message, ...]


def conversations(path: Path) -> list[Conversation]:
    """A line: {"kind": …, "messages": [{"role": …, "content": …}, …]}. Raises `ConfigError`."""
    try:
        read = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
        found = [
            Conversation(
                str(one.get("kind", "given")),
                tuple(Message(role=m["role"], content=m["content"]) for m in one["messages"]),
            )
            for one in read
        ]
    except OSError as error:
        raise ConfigError(f"--transcripts {path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        shape = '{"kind": …, "messages": [{"role": …, "content": …}, …]}'
        raise ConfigError(f"--transcripts {path}: a line is not of the form {shape}: {error!r}") from None
    if not any(message["role"] == "assistant" for one in found for message in one.messages):
        raise ConfigError(f"--transcripts {path}: nobody answers in it")
    return found


def replayed(speech: Speech, tokens: int, told: Sequence[Conversation]) -> list[Ask]:
    """The first `tokens` that the assistant says in them, each answer dictated after what came before it."""
    asks = []
    for prompt, said in _turns(speech, told):
        if tokens > 0:
            asks.append(Ask(prompt, GREEDY, dictated=said[:tokens]))
            tokens -= len(said)
    return asks


def free_running(speech: Speech, count: int, told: Sequence[Conversation]) -> list[Ask]:
    """What the model itself says there, up to 96 tokens."""
    turns = list(_turns(speech, told))[:count]
    return [Ask(prompt, SamplingParams(temperature=0, max_tokens=min(96, len(said)))) for prompt, said in turns]


def _turns(speech: Speech, told: Sequence[Conversation]) -> Iterator[tuple[list[int], list[int]]]:
    """What stands before each answer, and the answer."""
    for conversation in told:
        for at, message in enumerate(conversation.messages):
            if message["role"] == "assistant":
                yield speech.chat(conversation.messages[:at]), speech.words(message["content"])


def transcripts(told: Sequence[Conversation]) -> list[Case]:
    """A case for each kind, replayed, and one with the model's own answers."""
    kinds: dict[str, list[Conversation]] = {}
    for conversation in told:
        kinds.setdefault(conversation.kind, []).append(conversation)
    cases = []
    for kind, mine in kinds.items():
        about = f"what was said in transcripts: {kind}"
        asks = partial(replayed, told=mine)
        cases.append(Case(f"{kind}, replayed", about, asks, REPLAYED, 300, bound=2.0, rounds=2))
    about = "the same prompts, up to 96 tokens of the model's own"
    return [*cases, Case("free-running", about, partial(free_running, told=told), 16, 4, rounds=2)]


# ---- text that is hard to draft --------------------------------------------------------------------------------------


def fresh(speech: Speech, count: int, tokens: int = 128) -> list[Ask]:
    """Sampled from words that do not repeat."""
    random = Random(f"{SEED}/fresh")
    prompts = [" ".join(random.sample(WORDS, 60)) for _ in range(count)]
    return [
        Ask(speech.words(prompt), SamplingParams(temperature=1, seed=seed, max_tokens=tokens, ignore_eos=True))
        for seed, prompt in enumerate(prompts)
    ]


def misleading(speech: Speech, count: int, tokens: int = 128) -> list[Ask]:
    """Dictated: runs of three tokens come again and again, each time with another token after them."""
    random = Random(f"{SEED}/misleading")
    ids = [speech.words(f" {word}")[0] for word in WORDS]
    asks = []
    for _ in range(count):
        said: list[int] = []
        runs = [random.sample(ids, 3) for _ in range(4)]
        follow = {at: iter(random.sample(ids, len(ids))) for at in range(len(runs))}
        while len(said) < tokens:
            at = random.randrange(len(runs))
            said += [*runs[at], next(follow[at])]
        asks.append(Ask(speech.words(text(random, 60)), GREEDY, dictated=said[:tokens]))
    return asks


# ---- all of it -------------------------------------------------------------------------------------------------------


def cases(told: Sequence[Conversation]) -> list[Case]:
    """In the order in which they are run."""
    json_about, tools_about = (
        "records of one schema, as in bench --workload json",
        "calls of tools with closed arguments",
    )
    fresh_about = "sampled at temperature 1 after words that do not repeat"
    misleading_about = "three tokens repeat, what follows them never does (dictated)"
    short = partial(fresh, tokens=64)
    return [
        Case("json", json_about, records, 8, 3, 1, 1.35),
        Case("json", json_about, records, 24, 8, 8, 1.2),
        Case("json", json_about, records, 48, 16, 32, rounds=2),
        Case("tool calls", tools_about, tool_calls, 12, 4, 1, 1.8, 0.55),
        Case("tool calls", tools_about, tool_calls, 24, 8, 8, 1.2),
        Case("city", "a form of SGLang's benchmark", cities, 6, 2),
        Case("city", "a form of SGLang's benchmark", cities, 16, 8, 8),
        Case("character", "a form of SGLang's benchmark", characters, 6, 2),
        Case("character", "a form of SGLang's benchmark", characters, 16, 8, 8),
        *transcripts(told),
        Case("fresh", fresh_about, fresh, 4, 2, 1, 0.97),
        Case("fresh", fresh_about, fresh, 16, 8, 8, 0.97),
        Case("fresh", fresh_about, short, 64, 32, 32, 0.97),
        Case("misleading", misleading_about, misleading, 4, 2, 1, 0.97),
        Case("misleading", misleading_about, partial(misleading, tokens=64), 64, 32, 32, 0.97),
    ]
