"""What the target said and how sure it was, on disk: one row for each token that it generated.

Knows files and arrays; nothing of models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TOP = 16
"""The likeliest tokens whose probabilities are kept."""

Row = npt.NDArray[Any]
"""Of `row_type`."""


def row_type(hidden: int) -> np.dtype[Any]:
    """`hidden` is the target's state whose logits gave `token`; `ids` are the `TOP` likeliest tokens there, the first
    the likeliest, and `logs` the natural logarithms of their probabilities."""
    return np.dtype(
        [("token", "<i4"), ("ids", "<i4", (TOP,)), ("logs", "<f2", (TOP,)), ("hidden", "<f2", (hidden,))]
    )  # fmt: skip


class Spoken(NamedTuple):
    """One answer: the number of its prompt, and its rows."""

    prompt: int
    rows: Row


class RowStore:
    """Answers one after another in `rows.bin`, and which those are in `answers.jsonl`.

    Answers are added some at a time, and count once their line is written: what a kill leaves behind of others is cut
    off when the store is opened again.
    """

    def __init__(self, folder: Path, hidden: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._answers = folder / "rows.bin", folder / "answers.jsonl"
        self._type = row_type(hidden)
        self.prompts: list[int] = []
        self.lengths: list[int] = []
        self.seconds = 0.0
        self._open()

    def _open(self) -> None:
        whole = 0
        if self._answers.is_file():
            for line in self._answers.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                added = json.loads(line)
                self.prompts += added["prompts"]
                self.lengths += added["lengths"]
                self.seconds = added["seconds"]
        for path, size in ((self._answers, whole), (self._rows, len(self) * self._type.itemsize)):
            with path.open("ab") as file:
                file.truncate(size)

    def __len__(self) -> int:
        """Rows."""
        return sum(self.lengths)

    @property
    def bytes_of_row(self) -> int:
        return self._type.itemsize

    def add(self, answers: Sequence[Spoken], seconds: float) -> None:
        """Safe on the disk when it returns. `seconds` is what all answers so far have taken."""
        _append(self._rows, b"".join(answer.rows.tobytes() for answer in answers))
        prompts, lengths = [answer.prompt for answer in answers], [len(answer.rows) for answer in answers]
        added = {"prompts": prompts, "lengths": lengths, "seconds": seconds}
        _append(self._answers, json.dumps(added).encode() + b"\n")
        self.prompts += prompts
        self.lengths += lengths
        self.seconds = seconds

    def map(self) -> Row:
        """All rows, read from the disk as they are used."""
        if not len(self):
            return np.empty(0, self._type)
        return np.memmap(self._rows, self._type, "r")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
