"""A program over plain HTTP, with nothing but the standard library: any language can write it so.

The skeleton of an answer first, then its points side by side in branches: nothing is sent or computed twice.
Start the server first: `make serve`.

    python examples/programs_http.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def request(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def advise(url: str, question: str) -> list[str]:
    run = f"{url}/v1/programs/{request('POST', f'{url}/v1/programs', {'name': 'advise'})['id']}"

    def step(kind: str, /, **fields: Any) -> Any:
        return request("POST", f"{run}/{kind}", fields)

    def explain(branch: str, point: str) -> None:
        step("append", branch=branch, messages=[{"role": "user", "content": f"Say more about: {point}"}])
        answer = step("generate", branch=branch, name="reason", temperature=0, max_tokens=30)
        print(f"{point} {answer['usage']['prompt_tokens_details']['cached_tokens']} tokens were there already.")

    try:
        step("append", messages=[{"role": "user", "content": f"{question} Answer with one short line."}])
        points = step("generate", n=2, temperature=0.8, seed=1, stop=["\n"], max_tokens=20)["choices"]
        branches = [choice["branch"] for choice in points]
        with ThreadPoolExecutor() as threads:
            list(threads.map(explain, branches, (choice["text"] for choice in points)))
        reasons: list[str] = step("join", branches=branches)["variables"]["reason"]
        return reasons
    finally:
        request("DELETE", run)


def main(url: str) -> None:
    for reason in advise(url, "How can I learn to cook?"):
        print("-", reason)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
