"""A first program: one question, one answer, and what it cost.

The engine runs the embedded model in a process of its own.

    python examples/quickstart.py
    bosquet run examples/quickstart.py:tell -a topic=tea -a words=10
"""

from __future__ import annotations

import bosquet
from bosquet import State, gen


@bosquet.program(temperature=0)
def tell(s: State, topic: str, words: int = 20) -> None:
    s.user(f"Explain in about {words} words what {topic} is.")
    s.assistant(gen("answer", max_tokens=2 * words))


def main() -> None:
    with bosquet.Engine() as engine:
        for piece in tell.stream("tea", backend=engine):  # text as it is generated
            print(piece, end="", flush=True)
        print()

        result = tell.run("honey", backend=engine)  # or wait for all of it
        cost = result.meta("answer")
        print(result["answer"])
        print(f"{cost.cached_tokens} of {cost.prompt_tokens} prompt tokens were known already")


if __name__ == "__main__":
    main()
