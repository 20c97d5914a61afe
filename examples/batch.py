"""One program over many inputs, run at the same time, with a progress bar.

The engine computes them as one batch; the beginning that their prompts share is computed once.

    python examples/batch.py
    bosquet run examples/batch.py:capital -a country=Peru
"""

from __future__ import annotations

import bosquet
from bosquet import State, gen

COUNTRIES = ["France", "Italy", "Japan", "Egypt", "Peru", "Norway", "Cuba", "India"]


@bosquet.program(temperature=0)
def capital(s: State, country: str) -> None:
    s.system("You know the capitals of all countries.")
    s.user(f"What is the capital of {country}?")
    s.assistant(f"The capital of {country} is" + gen("city", regex=r" [A-Z][a-z]+( [A-Z][a-z]+)?\.", max_tokens=10))


def main() -> None:
    with bosquet.Engine() as engine:
        results = capital.map(COUNTRIES, backend=engine, progress=True)
    for country, result in zip(COUNTRIES, results, strict=True):
        print(f"{country}:{result['city']}")
    prompt = sum(result.usage.prompt_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    print(f"{cached} of {prompt} prompt tokens were computed for another item already")


if __name__ == "__main__":
    main()
