"""An agent with two tools: the model calls, the calls are carried out, their results are added, and it answers.

The arguments of a call are held to the types of the function, token by token. What a tool raises is told to the model.

    python examples/tool_agent.py
    bosquet run examples/tool_agent.py:shop -a 'question=What does one cheese cost?'
"""

from __future__ import annotations

from typing import Literal

import bosquet
from bosquet import State

PRICES = {"apple": 0.5, "bread": 2.4, "cheese": 8.9}


@bosquet.tool
async def price(item: Literal["apple", "bread", "cheese", "wine"]) -> str:
    """Look up the price of one item."""
    return f"{PRICES[item]} euros"


@bosquet.tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


@bosquet.program(temperature=0, max_tokens=60)
def shop(s: State, question: str) -> str:
    s.user(question)
    s.act([price, multiply], tool_choice="required", parallel=False, max_steps=3)  # the first step has to call
    acted = s["act"]
    s["calls"] = [f"{call.name}({' '.join(call.arguments.split())}) -> {call.text}" for call in acted.calls]
    return acted.text if acted.finished else f"no answer: {acted.stopped}"


def main() -> None:
    with bosquet.Engine() as engine:
        for question in ("What does one bread cost?", "How much is 12 times 34?"):
            result = shop.run(question, backend=engine)
            print(question, *result["calls"], result.value, "", sep="\n")


if __name__ == "__main__":
    main()
