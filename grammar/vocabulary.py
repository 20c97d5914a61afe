"""What a grammar has to know of a vocabulary: the bytes of each token, and which tokens may never be text.

Knows nothing of tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class Vocabulary:
    """Tokens by id, for a head of `head_width` outputs.

    `end_ids` end a generation; they are the one stop set that grammars and engine share. Special tokens other than
    these, tokens without bytes, and ids beyond `token_bytes` (padding of the head) never fit a grammar.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], head_width: int, end_ids: Iterable[int], special_ids: Iterable[int] = ()
    ) -> None:
        if len(token_bytes) > head_width:
            raise ValueError(f"{len(token_bytes)} tokens do not fit a head of {head_width}")
        self.head_width = head_width
        self.end_ids = tuple(sorted(set(end_ids)))
        if not self.end_ids or not 0 <= self.end_ids[0] <= self.end_ids[-1] < head_width:
            raise ValueError(f"end tokens {self.end_ids} are not in 0 … {head_width - 1}")
        never = set(special_ids) | set(self.end_ids)
        self.text_bytes: tuple[bytes, ...] = tuple(
            b"" if token in never else text for token, text in enumerate(token_bytes)
        )
        """Bytes of tokens that may be text; empty for all others."""
        allowed = np.zeros(head_width, dtype=np.bool_)
        allowed[: len(token_bytes)] = [bool(text) for text in self.text_bytes]
        allowed[list(self.end_ids)] = True
        self.allowed: npt.NDArray[np.bool_] = allowed
        """[head_width]: tokens that some grammar could allow."""
        allowed.setflags(write=False)

    @property
    def mask_words(self) -> int:
        """int32 words of a mask row."""
        return (self.head_width + 31) // 32
