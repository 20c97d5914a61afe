"""Skeleton of thought: first the points of an answer, then all of them worked out side by side.

Ning et al. 2023, "Skeleton-of-Thought: Prompting LLMs for Efficient Parallel Generation". The branches share the tokens
up to the fork, which are computed once, and run in one batch.

    python examples/skeleton.py
    bosquet run examples/skeleton.py:advise -a 'question=How do I sleep well?' -a points=2
"""

from __future__ import annotations

import bosquet
from bosquet import State, gen


@bosquet.program(temperature=0)
def advise(s: State, question: str, points: int = 3) -> str:
    s.user(f"{question} List {points} points, a few words each.")
    with s.assistant():
        for i in range(points):
            s += f"{i + 1}." + gen(f"point_{i}", stop=["\n", ":", ".", ","], max_tokens=8) + "\n"

    branches = s.fork(points)
    for i, branch in enumerate(branches):
        branch.user(f"Why point {i + 1}? One sentence.")
        branch.assistant(f"{s[f'point_{i}'].strip()}, because" + gen("reason", stop=["\n", "."], max_tokens=32))
    s.join(branches)  # what the branches set is now a list, in their order

    return "\n".join(f"{s[f'point_{i}'].strip()}, because{reason}." for i, reason in enumerate(s["reason"]))


def main() -> None:
    with bosquet.Engine() as engine:
        result = advise.run("How can I stay healthy?", backend=engine)
    print(result.value)
    for meta in result.meta("reason"):
        print(f"a branch took {meta.cached_tokens} of {meta.prompt_tokens} prompt tokens from the cache")


if __name__ == "__main__":
    main()
