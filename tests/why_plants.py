"""Planted causes of misses: requests that fill the cache, one that misses, and what is to be named."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from why_bed import assistant, system, user

RULES = (
    "You are the agent of a small bank in the mountains. Answer in short sentences, name your sources and never guess. "
    "Ask before money moves. Say what you cannot do, and who can. Write numbers with two digits after the point. "
)
LONG = "The glacier lost four metres of ice in the hot summer, and the hut below it had to be moved once more. " * 3


class Asked(NamedTuple):
    """A request; `more` are further fields of its body."""

    messages: list[dict[str, Any]]
    more: dict[str, Any]


def ask(*messages: dict[str, Any], **more: Any) -> Asked:
    return Asked(list(messages), more)


def tool(name: str, about: str = "does something", **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {"x": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def call(name: str, arguments: str) -> dict[str, Any]:
    made = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "c1"}


TURNS = [
    message
    for i in range(6)
    for message in (user(f"Question {i}: {LONG[i:90]}"), assistant(f"Answer {i}: {LONG[:70]}"))
]
WEATHER, MAIL = tool("get_weather", "the weather of a place"), tool("send_mail", "sends a mail")
QUESTION = user("How high is the mountain behind the hut?")

PLANTS: dict[str, tuple[list[Asked], Asked, str, str]] = {
    # name: what came before, the request that misses, the kind and the field that are to be named
    "time stamp in the system prompt": (
        [ask(system(f"Now: 2026-11-30T08:00:01Z. {RULES}"), QUESTION)],
        ask(system(f"Now: 2026-11-30T08:00:07Z. {RULES}"), QUESTION), "timestamp", "messages[0].content"),
    "date in words": (
        [ask(system(f"{RULES}Today is Monday, November 30, 2026. {LONG}"), QUESTION)],
        ask(system(f"{RULES}Today is Tuesday, December 1, 2026. {LONG}"), QUESTION), "timestamp",
        "messages[0].content"),
    "clock in the user's message": (
        [ask(system(RULES), user(f"[14:03:59] {LONG}"))],
        ask(system(RULES), user(f"[14:05:12] {LONG}")), "timestamp", "messages[1].content"),
    "seconds since 1970": (
        [ask(system(f"ts=1796025601 {RULES}"), QUESTION)],
        ask(system(f"ts=1796026222 {RULES}"), QUESTION), "timestamp", "messages[0].content"),
    "uuid": (
        [ask(system(f"Session 6ba7b810-9dad-11d1-80b4-00c04fd430c8. {RULES}"), QUESTION)],
        ask(system(f"Session 7d444840-9dc0-11d1-b245-5ffdce74fad2. {RULES}"), QUESTION),
        "random_id", "messages[0].content"),
    "random id with a prefix": (
        [ask(system(f"{RULES} Request req_8fK2mQ9xZt1L. {LONG}"), QUESTION)],
        ask(system(f"{RULES} Request req_3vB7nW0yRa5P. {LONG}"), QUESTION), "random_id", "messages[0].content"),
    "counter": (
        [ask(system(f"Attempt 7 of this task. {RULES}"), QUESTION)],
        ask(system(f"Attempt 8 of this task. {RULES}"), QUESTION), "number", "messages[0].content"),
    "moved newline": (
        [ask(system(f"{RULES}\n{LONG}"), QUESTION)],
        ask(system(f"{RULES}\n\n{LONG}"), QUESTION), "whitespace", "messages[0].content"),
    "trailing blank": (
        [ask(system(RULES + LONG), QUESTION)],
        ask(system(RULES + LONG + "  "), QUESTION), "whitespace", "messages[0].content"),
    "tabs for blanks": (
        [ask(system(RULES), user("    def f():\n        return 1\n" + LONG))],
        ask(system(RULES), user("\tdef f():\n\t\treturn 1\n" + LONG)), "whitespace", "messages[1].content"),
    "unicode form": (
        [ask(system(f"Das Caf\u00e9 am Gletscher. {RULES}"), QUESTION)],
        ask(system(f"Das Cafe\u0301 am Gletscher. {RULES}"), QUESTION), "unicode", "messages[0].content"),
    "letter case": (
        [ask(system(f"you are Helpful. {RULES}"), QUESTION)],
        ask(system(f"You are helpful. {RULES}"), QUESTION), "case", "messages[0].content"),
    "keys in another order": (
        [ask(system(RULES), user(json.dumps({"name": "Ada", "city": "Bern", "text": LONG})))],
        ask(system(RULES), user(json.dumps({"city": "Bern", "name": "Ada", "text": LONG}))),
        "json_layout", "messages[1].content"),
    "documents in another order": (
        [ask(system(RULES), user(f"Documents:\n- {LONG}\n- {RULES}\n- short one\nWhich is true?"))],
        ask(system(RULES), user(f"Documents:\n- {RULES}\n- {LONG}\n- short one\nWhich is true?")),
        "reordered", "messages[1].content"),
    "appended to the system prompt": (
        [ask(system(RULES), *TURNS, QUESTION)],
        ask(system(RULES + "Also be polite."), *TURNS, QUESTION), "appended", "messages[0].content"),
    "cut from the system prompt": (
        [ask(system(RULES + "Also be polite."), *TURNS, QUESTION)],
        ask(system(RULES.rstrip()), *TURNS, QUESTION), "cut", "messages[0].content"),
    "cut from the user's last message": (
        [ask(system(RULES), user(LONG + "What does it say?"))],
        ask(system(RULES), user(LONG.rstrip())), "cut", "messages[1].content"),
    "trailing blank taken away": (
        [ask(system(RULES + "  "), QUESTION)],
        ask(system(RULES.rstrip()), QUESTION), "whitespace", "messages[0].content"),
    "answer cut short": (
        [ask(system(RULES), user("Hi"), assistant(f"It is high. {LONG}"), QUESTION)],
        ask(system(RULES), user("Hi"), assistant("It is high."), QUESTION), "answer_changed", "messages[2].content"),
    "the last tool less": (
        [ask(system(RULES), QUESTION, tools=[WEATHER, MAIL])],
        ask(system(RULES), QUESTION, tools=[WEATHER]), "tools_changed", "tools[0]"),
    "word changed in the system prompt": (
        [ask(system(f"You are kind. {RULES}"), QUESTION)],
        ask(system(f"You are brief. {RULES}"), QUESTION), "edited", "messages[0].content"),
    "tools in another order": (
        [ask(system(RULES), QUESTION, tools=[WEATHER, MAIL])],
        ask(system(RULES), QUESTION, tools=[MAIL, WEATHER]), "tools_reordered", "tools[0]"),
    "a tool more": (
        [ask(system(RULES), QUESTION, tools=[WEATHER])],
        ask(system(RULES), QUESTION, tools=[WEATHER, MAIL]), "tools_changed", "tools[1]"),
    "a tool less": (
        [ask(system(RULES), QUESTION, tools=[WEATHER, MAIL])],
        ask(system(RULES), QUESTION, tools=[MAIL]), "tools_changed", "tools[0]"),
    "a tool described otherwise": (
        [ask(system(RULES), QUESTION, tools=[WEATHER, MAIL])],
        ask(system(RULES), QUESTION, tools=[tool("get_weather", "the forecast of a place"), MAIL]),
        "tool_edited", "tools[0]"),
    "a tool's schema in another order": (
        [ask(system(RULES), QUESTION, tools=[tool("move", a={"type": "string"}, b={"type": "integer"})])],
        ask(system(RULES), QUESTION, tools=[tool("move", b={"type": "integer"}, a={"type": "string"})]),
        "json_layout", "tools[0]"),
    "arguments of a call written otherwise": (
        [ask(system(RULES), QUESTION, call("get_weather", '{"place": "Bern", "days": 3}'), result(LONG),
             tools=[WEATHER])],
        ask(system(RULES), QUESTION, call("get_weather", '{"place":"Bern","days":3}'), result(LONG), tools=[WEATHER]),
        "arguments_layout", "messages[2].tool_calls"),
    "arguments of a call changed": (
        [ask(system(RULES), QUESTION, call("get_weather", '{"place": "Bern"}'), result(LONG), tools=[WEATHER])],
        ask(system(RULES), QUESTION, call("get_weather", '{"place": "Biel"}'), result(LONG), tools=[WEATHER]),
        "arguments_changed", "messages[2].tool_calls"),
    "history truncated": (
        [ask(system(RULES), *TURNS, QUESTION)],
        ask(system(RULES), *TURNS[2:], QUESTION), "history_truncated", "messages[1].content"),
    "a message put in": (
        [ask(system(RULES), *TURNS, QUESTION)],
        ask(system(RULES), *TURNS[:4], user("By the way, be brief."), *TURNS[4:], QUESTION),
        "message_inserted", "messages[5].content"),
    "examples in another order": (
        [ask(system(RULES), *TURNS[:2], *TURNS[2:4], QUESTION)],
        ask(system(RULES), *TURNS[2:4], *TURNS[:2], QUESTION), "messages_reordered", "messages[1].content"),
    "answer changed": (
        [ask(system(RULES), user("Hi"), assistant(f"It is high. {LONG}"), QUESTION)],
        ask(system(RULES), user("Hi"), assistant(f"It is tall. {LONG}"), QUESTION),
        "answer_changed", "messages[2].content"),
    "role changed": (
        [ask(system(RULES), user(LONG), QUESTION)],
        ask(system(RULES), {"role": "assistant", "content": LONG}, QUESTION), "role_changed", "template"),
    "another question": (
        [ask(system(RULES), user("What does a loan of nine thousand cost, and when is it paid back?"))],
        ask(system(RULES), user("Please list all branches in valleys without a train.")), "new_text",
        "messages[1].content"),
}  # fmt: skip


def in_case(name: str, asked: Asked) -> Asked:
    """Every plant has a beginning of its own, so that no other one is nearer."""
    first, *rest = asked.messages
    return Asked([{**first, "content": f"Case: {name}. {LONG[:60]} {first['content']}"}, *rest], asked.more)
