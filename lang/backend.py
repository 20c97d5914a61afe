"""What the language sees of a runtime: one Protocol.

Knows nothing of engines, HTTP, tensors or caches. A backend either carries token ids (capability "tokens": an engine on
this machine, a Bosquet server) or chat messages (capability "messages": any OpenAI-compatible endpoint).
"""

from __future__ import annotations

import reprlib
from collections.abc import AsyncGenerator, Sequence, Set
from typing import Final, Protocol

from ..prompts.text_side import TextSide
from ..types import Call, Chunk, Origin

CAPABILITIES: Final[dict[str, str]] = {
    "tokens": "prompts as token ids",
    "messages": "prompts as chat messages",
    "text": "plain text without roles",
    "continue": "generation that continues text already in its turn, or a turn that is not the assistant's",
    "select": "choosing by log-probability",
    "json_schema": "output held to a JSON schema",
    "json_object": "output held to a JSON object",
    "regex": "output held to a regular expression",
    "choice": "output held to a list of choices",
    "ebnf": "output held to a grammar in EBNF",
    "lark": "output held to a grammar in Lark's notation",
    "structural_tag": "output held to a structural format",
    "tools": "tools that the model may call",
    "reasoning": "reasoning told apart from the answer",
    "images": "pictures in the prompt",
    "logprobs": "log-probabilities of the generated tokens",
    "top_logprobs": "log-probabilities of other tokens besides the generated ones",
    "min_tokens": "a least number of tokens",
    "top_k": "top-k sampling",
    "min_p": "min-p sampling",
    "presence_penalty": "presence penalty",
    "frequency_penalty": "frequency penalty",
    "repetition_penalty": "repetition penalty",
    "logit_bias": "logit bias",
    "seed": "a seed",
    "stop_token_ids": "stop token ids",
    "ignore_eos": "generation past the end token",
    "speculation": "a say in where draft tokens come from",
}
"""Every name that `Backend.capabilities` may hold, and what it stands for. All backends have temperature, top_p,
max_tokens and stop strings."""

TOKEN_CAPABILITIES: Final = frozenset(CAPABILITIES) - {"messages", "images"}
"""What an engine of ours can do."""


class Backend(Protocol):
    """A runtime that answers calls.

    Every method is awaited on the language's own event loop, in its own thread: what is bound to a loop must be made
    in the first call, not in the constructor. Instances are hashable and can be weakly referenced, as ordinary classes
    are.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """Names out of `CAPABILITIES`, exactly one of "tokens" and "messages" among them."""

    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """The chunks of one generation; the last says `finish`. Closing the generator cancels the call and frees what
        it held. With `call.tools` (capability "tools"), the answer is held to free text and whole calls, as `choice`
        and `parallel` say, and the arguments of each call to its tool's schema, as far as the backend can hold any
        output; the chunks tell the calls. With `call.reasoning` (capability "reasoning") the chunks tell apart what is
        thought and what is answered; a model that does not reason thinks nothing. Raises `RequestRejected`,
        `Overloaded`, `Unavailable`, `DeadlineExceeded`."""


class TokenBackend(Backend, TextSide, Protocol):
    """A backend whose prompts are token ids."""

    async def end(self, run: str) -> None:
        """No call of this run will come any more: what is kept for it may go. Unknown runs are ignored."""

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        """For each choice the log-probability of each of its tokens, when the choice follows `ids` (not empty)."""


def checked_backend(where: str, backend: Backend) -> Backend:
    """The same, if it is a backend at all. `where` begins the sentence that says that it is not."""
    if isinstance(backend, type):
        raise TypeError(f"{where}: {backend.__name__} is a class, not a backend: call it first")
    capabilities = getattr(backend, "capabilities", None)
    if not isinstance(capabilities, Set) or ("tokens" in capabilities) == ("messages" in capabilities):
        raise TypeError(
            f"{where}: {reprlib.repr(backend)} is no backend: its capabilities must name either tokens or messages"
        )
    return backend
