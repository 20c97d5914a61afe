"""A conversation of several turns.

Each turn's prompt holds all turns before it, and only what is new of it is computed.

    python examples/chat.py
    bosquet run examples/chat.py:talk -a 'questions=["Who are you?", "Who made you?"]'
"""

from __future__ import annotations

import bosquet
from bosquet import State, gen

QUESTIONS = ["Name the capital of France.", "And of Italy?", "And of Japan?"]


@bosquet.program(temperature=0, max_tokens=28)
def talk(s: State, questions: list[str]) -> None:
    s.system("Answer in one short sentence.")
    for number, question in enumerate(questions, 1):
        s.user(question)
        s.assistant(gen(f"answer_{number}"))


def main() -> None:
    with bosquet.Engine() as engine:
        result = talk.run(QUESTIONS, backend=engine)
    for number, question in enumerate(QUESTIONS, 1):
        cost = result.meta(f"answer_{number}")
        print(f"> {question}\n{result[f'answer_{number}']}")
        print(f"  ({cost.cached_tokens} of {cost.prompt_tokens} prompt tokens from the cache)")


if __name__ == "__main__":
    main()
