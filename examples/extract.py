"""From text to a checked Python object.

The output is held to the schema of a pydantic model, token by token, so it always parses and validates.

    python examples/extract.py
    bosquet run examples/extract.py:extract -a 'text=Ada, 36, writes programs in London.'
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

import bosquet
from bosquet import State, gen


class Person(BaseModel):
    name: Annotated[str, Field(max_length=30)]
    age: Annotated[int, Field(ge=0, le=130)]
    city: Annotated[str, Field(max_length=30)]
    job: Literal["engineer", "teacher", "doctor", "other"]


@bosquet.program(temperature=0)
def extract(s: State, text: str) -> Person:
    s.user(f"Text: {text}\nWho is this about? Answer in JSON with name, age, city and job.")
    s.assistant(gen("person", schema=Person, max_tokens=100))
    return s["person"]


def main() -> None:
    with bosquet.Engine() as engine:
        person = extract.run("Maria is 41 and teaches physics in Lisbon. She is a teacher.", backend=engine).value
    print(repr(person))


if __name__ == "__main__":
    main()
