"""Makes runtime/bench/edits.jsonl, which `bosquet bench speculation` replays, from this repository's own history.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/speculation_transcripts.py --until COMMIT > runtime/bench/edits.jsonl

Every line is a conversation. What is asked, read and written is real: the subject of a commit, a file before it and
after it. Who says it is arranged: in `code` and `text` the answer is the whole file after the change, in `agents` one
call for each part of the change, after a call that read the file.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

SEED = "bosquet edits 1"
KINDS = {"code": (".py", 3), "text": (".md", 2)}
AGENTS = 2
CONTEXT = 2
"""Lines before and after a change that an agent quotes, so that the place is found."""

SYSTEM = """You change files as you are asked to. Tools:
read_file {"path": "..."}: the text of a file
edit_file {"path": "...", "old": "...", "new": "..."}: replace a part of it, which must stand there once"""


class Change(NamedTuple):
    subject: str
    commit: str
    path: str
    before: str
    after: str

    @property
    def size(self) -> int:
        return max(len(self.before), len(self.after))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def changes(until: str) -> Iterator[Change]:
    """Of every commit but the first, the files that it changed a little."""
    for line in git("log", "--format=%h %s", "--no-merges", until).splitlines()[:-1]:
        commit, subject = line.split(" ", 1)
        if len(subject.split()) < 5 or subject.startswith("Work in progress"):
            continue
        for counted in git("show", "--numstat", "--format=", "--diff-filter=M", "--no-renames", commit).splitlines():
            added, removed, path = counted.split("\t")
            if path.endswith((".py", ".md")) and 4 <= int(added) + int(removed) <= 40:
                yield Change(subject, commit, path, git("show", f"{commit}~:{path}"), git("show", f"{commit}:{path}"))


def rewritten(kind: str, change: Change) -> dict[str, Any]:
    asked = f"{change.subject}.\nChange {change.path} accordingly and write the whole file again.\n\n{change.before}"
    return conversation(kind, change, [("user", asked), ("assistant", change.after)])


def edited(files: list[Change]) -> dict[str, Any]:
    first = files[0]
    said = [("system", SYSTEM), ("user", f"{first.subject}. The files: {', '.join(file.path for file in files)}")]
    for file in files:
        said += [("assistant", call("read_file", path=file.path)), ("user", file.before)]
        for old, new in parts(file):
            said += [("assistant", call("edit_file", path=file.path, old=old, new=new)), ("user", "done")]
    return conversation("agents", first, [*said, ("assistant", f"{first.subject}.")])


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def parts(change: Change) -> Iterator[tuple[str, str]]:
    """Each part that differs, with the lines around it, before and after."""
    before, after = change.before.splitlines(keepends=True), change.after.splitlines(keepends=True)
    for group in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(CONTEXT):
        yield "".join(before[group[0][1] : group[-1][2]]), "".join(after[group[0][3] : group[-1][4]])


def conversation(kind: str, change: Change, said: list[tuple[str, str]]) -> dict[str, Any]:
    messages = [{"role": role, "content": text} for role, text in said]
    return {"kind": kind, "name": f"{change.commit} {change.path}", "messages": messages}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", default="HEAD", help="The newest commit that is looked at.")
    found = list(changes(parser.parse_args().until))
    rng = random.Random(SEED)
    rng.shuffle(found)
    taken: set[str] = set()
    for kind, (ending, count) in KINDS.items():
        fit = [c for c in found if c.path.endswith(ending) and 1500 <= c.size <= 5000]
        for change in fit:
            if count and change.path not in taken:
                taken.add(change.path)
                count -= 1
                print(json.dumps(rewritten(kind, change), ensure_ascii=False))
    agents = 0
    for commit in dict.fromkeys(change.commit for change in found):
        files = [c for c in found if c.commit == commit and c.path.endswith(".py") and c.size <= 6000][:3]
        if len(files) == 3 and sum(file.size for file in files) <= 12_000 and agents < AGENTS:
            agents += 1
            print(json.dumps(edited(files), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
