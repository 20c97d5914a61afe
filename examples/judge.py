"""A judge that cannot ramble.

`select` asks how likely each verdict is as the next text, and samples nothing.

    python examples/judge.py
    bosquet run examples/judge.py:judge -a 'review=The soup was cold and the waiter was rude.'
"""

from __future__ import annotations

import math

import bosquet
from bosquet import State, select

REVIEWS = [
    "The best pizza that I have ever had, and the staff were lovely!",
    "The soup was cold, the waiter was rude, and we waited an hour.",
]


@bosquet.program
def judge(s: State, review: str) -> dict[str, float]:
    s.user(f"Review: {review}\nIs this review positive or negative?")
    s.assistant("This review is " + select("verdict", ["positive", "negative"]))
    scores = s.meta("verdict").scores  # mean log-probability of a token
    total = sum(math.exp(score) for score in scores.values())
    return {choice: math.exp(score) / total for choice, score in scores.items()}


def main() -> None:
    with bosquet.Engine() as engine, bosquet.use(engine):
        for review in REVIEWS:
            result = judge.run(review)
            print(f"{result['verdict']} ({result.value[result['verdict']]:.0%}): {review}")


if __name__ == "__main__":
    main()
