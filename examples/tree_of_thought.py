"""Tree of thought: draw several next steps, let the model rate each, take the best ones further.

Yao et al. 2023, "Tree of Thoughts: Deliberate Problem Solving with Large Language Models", searched breadth first.

    python examples/tree_of_thought.py
    bosquet run examples/tree_of_thought.py:search -a 'task=Tell me a story about a fox.' -a depth=1
"""

from __future__ import annotations

import bosquet
from bosquet import State, gen, select


def ask_for_rating(s: State) -> State:
    """The question goes to a branch, so `s` stays as it is. Nothing waits here: all ratings run side by side."""
    judge = s.fork(1)[0]
    judge.user("Is that a good sentence for this task?")
    judge.assistant("It is a" + select("rating", [" good", " bad"]) + " sentence.")
    return judge


def score(judge: State) -> float:
    scores = judge.meta("rating").scores
    return scores[" good"] - scores[" bad"]


@bosquet.program(temperature=0.8, max_tokens=24, stop=[".", "\n"])
def search(s: State, task: str, depth: int = 2, width: int = 3, keep: int = 2) -> list[str]:
    s.user(task)
    frontier = [s]
    for level in range(depth):
        thoughts = [branch for state in frontier for branch in state.fork(width)]
        for seed, thought in enumerate(thoughts):
            if level:
                thought.user("Go on.")
            thought.assistant(gen(f"step_{level}", seed=seed) + ".")
        judges = [ask_for_rating(thought) for thought in thoughts]
        ranked = sorted(range(len(thoughts)), key=lambda i: score(judges[i]), reverse=True)
        frontier = [thoughts[i] for i in ranked[:keep]]
    return [frontier[0][f"step_{level}"] for level in range(depth)]


def main() -> None:
    with bosquet.Engine() as engine:
        result = search.run("Tell me a story about the sea.", backend=engine)
    print(*result.value, sep="\n")
    usage = result.usage
    print(f"{usage.calls} calls; {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens from the cache")


if __name__ == "__main__":
    main()
