"""The official `openai` client with a running Bosquet server.

Start the server first: `make serve`.

    python examples/openai_client.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

from openai import OpenAI
from pydantic import BaseModel


class Answer(BaseModel):
    city: str
    country: str


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hello to the world."}],
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    typed = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Name a big city and its country as JSON."}],
        response_format=Answer,
        temperature=0,
        max_tokens=60,
    )
    print(repr(typed.choices[0].message.parsed))

    bounded = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Is the sea wet? Yes or no?"}],
        extra_body={"choice": ["yes", "no"]},  # not in the protocol: the output is one of these
    )
    print(bounded.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
