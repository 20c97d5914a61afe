"""What was found, case by case, in a file that outlives its writer. Knows no case.

Each entry is a line of JSON. A case that began and has no finding took its process with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from .report import Finding, line


class Entry(NamedTuple):
    part: str
    case: str
    finding: Finding | None  # None: it began


class Journal:
    """Appends, and prints what it appends as a line of the table."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def began(self, part: str, case: str) -> None:
        self._append({"part": part, "case": case})

    def found(self, part: str, case: str, finding: Finding) -> None:
        self._append({"part": part, "case": case, **finding._asdict()})
        print(line(part, case, finding), flush=True)

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text().splitlines():
            entry = json.loads(text)
            finding = {name: entry[name] for name in Finding._fields if name in entry}
            found.append(Entry(entry["part"], entry["case"], Finding(**finding) if finding else None))
        return found

    def unfinished(self) -> list[Entry]:
        """Cases that began and found nothing."""
        entries = self.entries()
        done = {(entry.part, entry.case) for entry in entries if entry.finding is not None}
        return [entry for entry in entries if entry.finding is None and (entry.part, entry.case) not in done]


def figures(entries: list[Entry]) -> dict[str, float]:
    """Numbers that targets are made of, by name."""
    found: dict[str, float] = {}
    for entry in entries:
        if entry.finding is not None:
            found.update(entry.finding.facts.get("figures", {}))
    return found
