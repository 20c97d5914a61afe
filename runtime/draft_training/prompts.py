"""What the target is asked, so that its answers can be learnt from: a file of the user's, or a set of our own.

Knows files and text; nothing of tokens or models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ...errors import ConfigError


class Prompt(NamedTuple):
    """A conversation, or a text to go on with as it stands; one of the two is empty."""

    messages: tuple[dict[str, Any], ...] = ()
    text: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """Of a .txt file each line is a user's message. Of a .jsonl file each line is an object with "messages" (a
    conversation whose next turn is the assistant's) or "prompt" (plain text to go on with). Blank lines are nothing.

    Raises `ConfigError` with the line that is something else, and for a file without a prompt.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(f"prompts is {path}; it must be a .txt or .jsonl file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # other ends of lines stand inside JSON texts
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts is {path}, which cannot be read: {error}") from None
    read = _line if path.suffix == ".jsonl" else _message
    prompts = [read(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"prompts is {path}, and there is none in it")
    return prompts


def _message(where: str, line: str) -> Prompt:
    return Prompt(({"role": "user", "content": line.strip()},))


def _line(where: str, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    match value:
        case {"messages": [_, *_] as messages} if all(isinstance(message, dict) for message in messages):
            return Prompt(tuple(messages))
        case {"prompt": str(text)} if text.strip():
            return Prompt(text=text)
    raise ConfigError(f'{where}: expected {{"messages": […]}} or {{"prompt": "…"}}, and neither empty')


def default_prompts(seed: int) -> list[Prompt]:
    """Every kind of request about some subjects, in random order: the same for one seed."""
    random = Random(seed)
    prompts = list(_combined(random))
    random.shuffle(prompts)
    return prompts


_PAIRS = 60
"""Subjects that each kind of request is made about."""


def _combined(random: Random) -> Iterator[Prompt]:
    for form in _REQUESTS:
        for _ in range(_PAIRS):
            request = form.format(s=random.choice(_SUBJECTS), t=random.choice(_SUBJECTS), n=random.randint(3, 8))
            if request.startswith(_PLAIN):
                yield Prompt(text=request.removeprefix(_PLAIN))
                continue
            system = random.choice(_SYSTEMS)
            messages = [{"role": "system", "content": system}] if system else []
            yield Prompt((*messages, {"role": "user", "content": request}))


_PLAIN = "PLAIN:"

_SYSTEMS = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "You answer briefly and to the point.",
    "You are a patient teacher. Use simple words and examples.",
    "You are an agent. Think step by step, then say what you do next.",
    "You only answer with JSON.",
)

_REQUESTS = (
    "Explain {s} to a child.",
    "What is {s}, and why does it matter?",
    "Write a short story about {s} and {t}.",
    "List {n} facts about {s}.",
    "Compare {s} with {t}.",
    "Write a poem of {n} lines about {s}.",
    "Give me {n} questions that a beginner would ask about {s}, with answers.",
    "How do I start with {s}? Answer in {n} steps.",
    "Write an e-mail to a colleague about {s}.",
    "Summarize what you know of {s} in {n} sentences.",
    "What are the advantages and disadvantages of {s}?",
    "Write a dialogue between two friends who talk about {s} and {t}.",
    "Describe {s} as a JSON object with the keys name, kind, tags and description.",
    "Give {n} records about {s} as a JSON array of objects with name, year and country.",
    "Make a Markdown table with {n} rows that compares {s} and {t}.",
    "Write a Python function that has to do with {s}, with a docstring and a test.",
    "Write a small Python class for {s}, and explain it line by line.",
    "Write a SQL query about {s}, and say what it does.",
    "Write an HTML page about {s}.",
    "Fix the mistakes: 'Yesterday I goed to a talk about {s} and it were very interesting for me and {t}.'",
    "Rewrite in formal English: 'hey, {s} is kinda cool but {t} is way better imo'.",
    "Translate into French: 'I would like to know more about {s}.'",
    "Make up {n} multiple-choice questions about {s}.",
    "What would happen if {s} did not exist?",
    "Who would be interested in {s}? Name {n} kinds of people and say why.",
    "Plan a week in which somebody learns about {s} and {t}.",
    "Write a product description for something made for {s}.",
    "Argue for and against: '{s} is more important than {t}.'",
    "Extract all nouns: 'The teacher told us about {s}, and then we saw a film on {t}.'",
    "Classify the text as positive, neutral or negative: 'I have never liked {s}, but {t} is wonderful.' Explain.",
    "Thought: I need to find out about {s}. Available tools: search(query), read(page), calculate(expression). "
    "Write the next thought, action and action input.",
    "A train needs {n} hours for 420 km. How fast is it? Then tell me about {s}.",
    "PLAIN:The history of {s} begins",
    "PLAIN:# {s}\n\n## Introduction\n\n",
    'PLAIN:def describe(subject: str = "{s}") -> str:\n    """',
    'PLAIN:{{"title": "{s}", "sections": [',
    "PLAIN:Question: What is {s}?\nAnswer:",
    "PLAIN:Dear Sir or Madam,\n\nI am writing to you about {s}. ",
)

_SUBJECTS = (
    *("bread", "photosynthesis", "the French Revolution", "chess", "volcanoes", "renewable energy", "honey bees"),
    *("machine learning", "the Roman Empire", "jazz", "black holes", "gardening", "climate change", "bicycles"),
    *("the human heart", "databases", "Japanese cooking", "the stock market", "dinosaurs", "public libraries"),
    *("electric cars", "poetry", "the immune system", "sailing", "coffee", "encryption", "ancient Egypt", "dogs"),
    *("mountain hiking", "the water cycle", "graph algorithms", "football", "vaccines", "the moon", "painting"),
    *("time management", "rivers", "operating systems", "tea", "democracy", "airplanes", "mushrooms", "sleep"),
    *("the Industrial Revolution", "probability", "cats", "cheese", "web servers", "whales", "friendship", "maps"),
    *("recycling", "the periodic table", "theatre", "robots", "taxes", "winter", "unit tests", "the violin", "salt"),
    *("urban planning", "earthquakes", "chocolate", "the internet", "trees", "a good interview", "first aid"),
    *("marathon running", "space travel", "glass", "the printing press", "mathematics", "museums", "online shops"),
)
