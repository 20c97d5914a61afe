"""What the routes share: the engine, the model's text side, settings, keys, metrics and the server's own state.

The text side (tokenizer, chat template, model facts) is known only once the engine has said what it loaded, so it is
installed later; until then whoever asks gets `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import Unavailable
from ...grammar.reasoning import Markers
from ...grammar.tools import KNOWN, Format
from ...types import FinishReason, ModelInfo, Segment, StopMatch
from ..engine_api import EngineApi
from .config import ServerConfig
from .conversations import Conversations
from .explainer import Explainer
from .keys import Keyring
from .metrics import Metrics
from .program_runs import Programs
from .spans import Spans
from .trace_book import TraceBook
from .trace_store import TraceStore
from .transcripts import Transcripts


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    @property
    def size(self) -> int: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def special_ids(self) -> Set[int]: ...

    @property
    def control_ids(self) -> Set[int]: ...

    def split_controls(self, segments: Sequence[Segment]) -> list[Segment]: ...

    def encode_segments(self, segments: Sequence[Segment], *, bos: bool = False) -> list[int]: ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = False) -> str: ...

    def bytes_of(self, token: int) -> bytes: ...

    def id_of_special(self, text: str) -> int | None: ...


class ChatTemplate(Protocol):
    """What the server needs of a chat template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[dict[str, Any]] | None,
        extra: dict[str, Any] | None,
    ) -> list[Segment]: ...


class TextStream(Protocol):
    """Turns one choice's tokens into text, holding back what may still change."""

    def push(self, tokens: Sequence[int], finish: FinishReason | None, stop: StopMatch | None) -> str: ...


@dataclass(slots=True)
class Pace:
    """Whether the template was quick the last time that a short conversation was rendered."""

    quick: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """The text side of a loaded model.

    `stream(stop, shown)` makes a fresh TextStream, which shows special tokens only if they are among `shown`.
    `tool_format` is how the model writes calls, `thinking` what stands around its reasoning. `longest_token` counts
    bytes.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    info: ModelInfo
    stream: Callable[[Sequence[bytes], Set[int]], TextStream]
    tool_format: Format = KNOWN["default"]
    thinking: Markers | None = None
    pace: Pace = field(default_factory=Pace)
    longest_token: int = field(init=False)

    def __post_init__(self) -> None:
        longest = max((len(self.tokenizer.bytes_of(token)) for token in range(self.tokenizer.size)), default=1)
        object.__setattr__(self, "longest_token", longest)


class TextServices:
    """Holds the text side once it is known."""

    def __init__(self, text: Text | None = None) -> None:
        self._text = text

    @property
    def ready(self) -> bool:
        return self._text is not None

    def install(self, text: Text) -> None:
        """Make the model's text side available to the routes."""
        self._text = text

    def get(self) -> Text:
        """Raises Unavailable before `install`."""
        if self._text is None:
            raise Unavailable("the model is being loaded")
        return self._text


class Lifecycle:
    """Counts the requests in flight, and remembers that the server is draining. Lives on the event loop."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.draining = False

    def enter(self) -> None:
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class Services:
    """What a route may use."""

    engine: EngineApi
    text: TextServices
    config: ServerConfig
    keys: Keyring
    metrics: Metrics
    lifecycle: Lifecycle
    programs: Programs
    conversations: Conversations
    transcripts: Transcripts
    book: TraceBook
    explainer: Explainer
    store: TraceStore | None = None
    spans: Spans | None = None

    def close(self) -> None:
        """Write and send what waits."""
        if self.store is not None:
            self.store.close()
        if self.spans is not None:
            self.spans.close()

    def model_name(self, text: Text) -> str:
        return self.config.served_model_name or text.info.name
