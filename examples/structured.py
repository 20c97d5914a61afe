"""A message becomes a ticket, field by field: each output is held to what it may be, and each value has its type.

`choices` and `regex` give text, a dict schema gives what the JSON says, a type gives an object of that type.

    python examples/structured.py
    bosquet run examples/structured.py:triage -a 'message=The printer on floor 3 is broken since Monday.'
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

import bosquet
from bosquet import State, gen


class Summary(BaseModel, extra="forbid"):  # no other fields, so that the model comes to an end
    title: Annotated[str, Field(max_length=40)]
    urgent: bool


TAGS = {
    "type": "array",
    "items": {"enum": ["hardware", "software", "network", "other"]},
    "minItems": 1,
    "maxItems": 2,
}


@bosquet.program(temperature=0)
def triage(s: State, message: str) -> Summary:
    s.user(f"A customer writes: {message}\nDescribe the problem.")
    with s.assistant():
        s += "Kind of problem: " + gen("kind", choices=["broken", "lost", "question"])
        s += "\nPriority from 1 to 5: " + gen("priority", regex="[1-5]")
        s += "\nTags: " + gen("tags", schema=TAGS, max_tokens=40)
        s += "\nSummary: " + gen("summary", schema=Summary, max_tokens=60)
    for name in ("tags", "summary"):
        for keyword in s.meta(name).relaxed:  # none here; with strict=True it would be refused
            print(f"{name} was not held to {keyword.keyword} at {keyword.path}: {keyword.reason}")
    return s["summary"]


def main() -> None:
    with bosquet.Engine() as engine:
        result = triage.run("My laptop does not start since the update, and I have a talk in an hour!", backend=engine)
    for name in result:
        print(f"{name}: {result[name]!r}")


if __name__ == "__main__":
    main()
