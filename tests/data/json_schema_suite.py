"""Writes json_schema_suite.json: what becomes of every test of the JSON Schema test suite.

Run by hand after a change that is meant: `PYTHONSAFEPATH=1 PYTHONPATH=tests python tests/data/json_schema_suite.py`.
What the letters say is in tests/json_schema_suite.py.
"""

from __future__ import annotations

import json

from json_schema_suite import RATCHET, results

if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(letters)}" for name, letters in results().items()]
    RATCHET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} groups")
