"""Calls what the dashboard's files export, in the Node.js that Playwright ships."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright._impl._driver import compute_driver_executable

import bosquet.runtime.dashboard

PAGE = Path(bosquet.runtime.dashboard.__file__).with_name("page")
_CALLS = """
import { readFileSync } from "node:fs";
const { module, expression, given } = JSON.parse(readFileSync(0, "utf8"));
const it = await import(module);
const work = new Function("it", "x", `return (${expression})`);
console.log(JSON.stringify(given.map((x) => work(it, x) ?? null)));
"""


def each(module: str, expression: str, given: Sequence[Any]) -> list[Any]:
    """The value of a JavaScript expression for each `x` of `given`; `it` is the module."""
    node = compute_driver_executable()[0]
    told = {"module": (PAGE / module).resolve().as_uri(), "expression": expression, "given": list(given)}
    command = [node, "--input-type=module", "--no-warnings", "-e", _CALLS]
    done = subprocess.run(command, check=False, input=json.dumps(told), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    values: list[Any] = json.loads(done.stdout)
    return values
