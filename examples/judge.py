"""A judge that cannot ramble.

`select` asks how likely each verdict is as the next text, and samples nothing.

    python examples/judge.py
    bosquet run examples/judge.py:judge -a 'review=The soup was cold and the waiter was rude.'
"""

from __future__ import annotations

import bosquet
from bosquet import State, select

REVIEWS = [
    "A charming place with wonderful food.",
    "The soup was cold and the waiter was rude.",
    "Never again: dirty tables and a burnt steak.",
]


@bosquet.program
def judge(s: State, review: str) -> str:
    s.user(f"Review: {review}\nWas the guest happy or angry?")
    # The space belongs to the choice: to the model, " happy" is one token, and a space before "happy" another text.
    # "unconditional" asks what the review adds: small models like some words better than others, whatever was said.
    s.assistant("The guest was" + select("mood", [" happy", " angry"], "unconditional"))
    return s["mood"].strip()


def main() -> None:
    with bosquet.Engine() as engine, bosquet.use(engine):
        for review in REVIEWS:
            result = judge.run(review)
            scores = ", ".join(f"{mood.strip()} {score:+.2f}" for mood, score in result.meta("mood").scores.items())
            print(f"{result.value} ({scores}): {review}")


if __name__ == "__main__":
    main()
