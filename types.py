"""The nouns of Bosquet: what crosses from one room, or one process, to another.

Imports nothing of ours; every room may import it. The classes that travel between processes are msgspec structs, so
that one definition is the Python object and its MessagePack form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Struct, field

PAGE = 16
"""Tokens in one page of the key-value cache. Part of every contract between cache, scheduler and kernels."""

FinishReason = Literal["stop", "length", "abort", "error"]
GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag"]
EngineState = Literal["starting", "ready", "restarting", "draining", "failed"]


class Segment(NamedTuple):
    """A piece of a rendered prompt. Special strings in `control` text (from the chat template) become special tokens;
    in other text they stay plain text. Pieces that stand side by side are encoded as one text."""

    text: str
    control: bool


class Message(TypedDict):
    """One turn of a conversation. `tool_calls` are those of an assistant's turn, in the shape of the OpenAI protocol;
    `tool_call_id` says which of them a tool's turn answers, and `name` is the tool's for templates."""

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class Origin(Struct, frozen=True, omit_defaults=True):
    """Who asks: the tenant, and the place in an agent program."""

    tenant: str = ""
    program: str = ""
    run: str = ""
    step: str = ""
    branch: str = ""


class Ahead(Struct, frozen=True, omit_defaults=True):
    """What is known of a run beyond one of its requests. Only a hint: right or wrong, the answers are the same.

    `returns`: whether the run will go on from this request's tokens; None: nobody knows. `pause_s`: how long it is
    likely to stay away before it does, as during a tool call. `steps`: requests that are still to come on the longest
    path, this one included. `tokens`: how many this request is likely to generate. 0: not known.
    """

    returns: bool | None = None
    pause_s: float = 0.0
    steps: int = 0
    tokens: int = 0


class GrammarSpec(Struct, frozen=True, omit_defaults=True):
    """What the output must look like.

    `value` is the JSON text of a schema (`json_schema`), a regular expression (`regex`), the JSON text of a list of
    strings (`choice`), a grammar in EBNF (`ebnf`) or Lark (`lark`), the JSON text of a format (`structural_tag`, see
    grammar/formats.py), or empty (`json_object`). With `strict`, what no engine enforces is refused; without, it is
    relaxed and reported. `after` is a marker in token ids, such as the end of a reasoning part: the output is free
    until it has been generated, and the grammar holds from there. `specials` are special tokens that the grammar's
    own text may be written with, such as the marker of a tool call.
    """

    kind: GrammarKind
    value: str = ""
    strict: bool = False
    after: tuple[int, ...] = ()
    specials: tuple[int, ...] = ()


class Relaxed(Struct, frozen=True, array_like=True):
    """A keyword of a schema that the output is not held to, and why: `path` is the JSON pointer of its schema."""

    path: str
    keyword: str
    reason: str


class ToolSpec(Struct, frozen=True, omit_defaults=True):
    """A function that the model may call. `parameters` is the JSON text of the schema of its arguments, an object. With
    `strict`, a schema that no engine enforces in full is refused."""

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'
    strict: bool = False


class ToolUse(Struct, frozen=True, omit_defaults=True):
    """What an answer may call. `choice` is "auto" (calls or free text), "required" (at least one call) or the name of
    one tool (a call of that). Without `parallel` an answer makes one call at most."""

    tools: tuple[ToolSpec, ...]
    choice: str = "auto"
    parallel: bool = True


class ToolCall(Struct, frozen=True):
    """A call that the model made. `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen, and when to stop. `SAMPLING_RANGES` has the ranges; nothing is checked here."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: the engine draws one per request
    stop: tuple[bytes, ...] = ()  # matched on the bytes of emitted tokens
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    min_tokens: int = 0
    max_tokens: int = 128  # 0: only prompt log-probabilities are wanted
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None  # number of alternatives besides the chosen token; None: no log-probabilities
    prompt_logprobs: int | None = None  # the same for prompt tokens ("echo")
    prompt_logprobs_from: int = 1  # first prompt position that is scored; position 0 has no predecessor


class Range(NamedTuple):
    """Numbers from `low` to `high`, both among them unless `above` leaves `low` out."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether it lies in the range; NaN does not."""
        return self.low < value <= self.high or (value == self.low and not self.above)

    def __str__(self) -> str:
        return f"above {self.low:g} and at most {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"


SAMPLING_RANGES: Final = {
    "temperature": Range(0.0, 100.0),
    "top_k": Range(0, 2**31),
    "top_p": Range(0.0, 1.0, above=True),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-100.0, 100.0),
    "frequency_penalty": Range(-100.0, 100.0),
    "repetition_penalty": Range(1e-3, 1e3),
    "min_tokens": Range(0, 2**31),
    "max_tokens": Range(0, 2**31),
    "n": Range(1, 128),
    "logprobs": Range(0, 1000),
    "prompt_logprobs": Range(0, 1000),
    "prompt_logprobs_from": Range(1, 2**31),
    "seed": Range(-(2**63), 2**64 - 1),
}
"""The numbers that some sampler can honour, by the fields of `SamplingParams`. Protocols may be narrower."""

MOST_STOPS, LONGEST_STOP = 64, 4096
"""Stop strings of one request, and bytes of one of them."""


DRAFT_SOURCES = ("forced", "suffix", "model")
"""What a grammar leaves no choice about, what was said before in the request or by its program, and the word of a draft
model where the engine has one."""


class Request(Struct, kw_only=True, omit_defaults=True):
    """One prompt to be continued, `sampling.n` times."""

    id: str
    ids: list[int]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    origin: Origin = Origin()
    priority: int = 0  # higher goes first
    timeout_s: float | None = None  # from arrival at the engine; passed: finish "abort"
    reuse: bool = True  # False: neither read nor fill the prefix cache
    ahead: Ahead = Ahead()
    speculation: tuple[str, ...] = DRAFT_SOURCES  # where drafts may come from; the answer is the same


class TokenLogprob(Struct, array_like=True):
    """Log-probability of one token under the raw model distribution (before penalties, bias, mask and temperature);
    minus infinity is sent as -9999.0. `top` holds the best alternatives, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


class StopMatch(Struct, array_like=True):
    """Why a choice stopped before its limit. `trim` bytes at the end of the emitted bytes belong to the stop string
    (or follow it in the same token) and are not part of the answer."""

    token: int | None = None  # the end token, which is the last of `tokens` and is never part of the text
    text: str | None = None  # the stop string
    trim: int = 0


class Output(Struct, array_like=True):
    """What one step produced for one choice of one request."""

    request: str
    choice: int
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None  # one per token of `tokens`
    finish: FinishReason | None = None
    stop: StopMatch | None = None
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache (the same in each output)
    prompt_logprobs: list[TokenLogprob] | None = None  # once, before or with the first token of choice 0
    error: tuple[str, str] | None = None  # (code, message) when finish is "error" or "abort"


class Call(Struct, frozen=True, kw_only=True):
    """One generation that a program asks of a back end. `ids` is the whole prompt for a back end that carries tokens,
    `messages` for one that carries messages; when the last message is the assistant's, it is to be continued. With
    `tools` the answer may call them. With `reasoning` what the model thinks first is told apart from its answer, and
    `grammar` and stop strings are about the answer. `speculation` is as in `Request`; None: as the back end likes."""

    sampling: SamplingParams
    origin: Origin
    grammar: GrammarSpec | None = None
    ids: Sequence[int] = ()
    messages: Sequence[Message] = ()
    tools: ToolUse | None = None
    reasoning: bool = False
    ahead: Ahead = Ahead()
    speculation: tuple[str, ...] | None = None


class Chunk(NamedTuple):
    """What a generation has produced since the chunk before.

    `ids` are all generated tokens, those of a stop string or an end token included; `text` leaves both out. `stop`
    says, with `finish == "stop"`, what ended it: the stop string, or the id of the end token (then the last of `ids`).
    `prompt_tokens`, `completion_tokens` and `cached_tokens` count; a chunk that does not know them says None.
    `relaxed` is what the output was not held to, said once. Where tools may be called, or reasoning is told apart,
    `content` is what of `text` is said to the reader, without calls and thoughts, `calls` are the calls that have
    become whole, and `reasoning` is what was thought; a back end whose `text` has neither in it leaves `content` out.
    """

    text: str = ""
    ids: Sequence[int] = ()
    finish: FinishReason | None = None
    stop: str | int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    relaxed: Sequence[Relaxed] = ()
    content: str | None = None
    calls: Sequence[ToolCall] = ()
    reasoning: str = ""


class ModelInfo(Struct, kw_only=True):
    """What the engine says of its model once it is ready."""

    name: str
    folder: str  # local folder in Hugging Face layout: config.json, tokenizer.json, tokenizer_config.json
    vocab_size: int  # width of the output head, padding included
    context_length: int
    dtype: str
    device: str
    kernels: str
    pages: int
    max_waiting: int  # choices that the queue holds; one request may not ask for more
    end_ids: tuple[int, ...] = ()  # tokens that end a generation


EVICTION_AGES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Seconds without a use: upper ends of the classes in which evicted pages are counted; the last has none."""


class Stats(Struct, kw_only=True):
    """Counters and gauges of an engine, all since its start."""

    incarnation: int = 0
    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0  # owned by the prefix tree, evictable or not
    pages_pinned: int = 0  # of these, those that running sequences read
    pages_running: int = 0  # owned by running rows
    steps: int = 0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    evicted_pages: int = 0
    evictions: dict[str, int] = field(default_factory=dict)  # pages that left the tree, by cause
    eviction_ages: list[int] = field(default_factory=list)  # evicted pages by class of `EVICTION_AGES`
    eviction_age_seconds: float = 0.0  # the sum over pages
    disk_pages: int = 0  # on disk now
    disk_pages_read: int = 0  # that came back to the cache
    disk_pages_written: int = 0
    disk_pages_refused: int = 0  # damaged, unwritable, or evicted faster than they could be written
    step_seconds: float = 0.0
    forward_seconds: float = 0.0
    schedule_seconds: float = 0.0
    sample_seconds: float = 0.0
    mask_seconds: float = 0.0
    drafted_tokens: dict[str, int] = field(default_factory=dict)  # by source: draft tokens that were reached
    accepted_tokens: dict[str, int] = field(default_factory=dict)  # and of these, those that were right
    stage_seconds: dict[str, float] = field(default_factory=dict)  # parts of the forward pass, where kernels tell


class Row(NamedTuple):
    """What the runner computes for one sequence in one pass.

    `tokens` are at positions `start`, `start + 1`, …; `pages` is the page table that covers position 0 up to the last
    of them; `logits_at` are the indices into `tokens` whose logits are wanted, in rising order. A negative token -1 - k
    is a placeholder for the k-th token sampled by the plan before this one. `parents` makes the tokens a draft tree.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    logits_at: Sequence[int]
    parents: Sequence[int] | None = None
