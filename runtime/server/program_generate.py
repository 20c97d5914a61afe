"""`generate`: the model goes on in a branch of a program over HTTP.

Knows nothing of routes. A generation that fails, or whose client leaves, leaves its branch as it was.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...errors import InvalidParameter
from ...prompts.tokens import kept_ids
from ...prompts.transcript import Transcript
from ...types import Request as EngineRequest
from ...types import SamplingParams, ToolCall, ToolSpec
from .answer import respond
from .body import ahead_of
from .completion_tools import Reading, reading
from .completion_writer import CompletionWriter, Folded
from .constraints import constraint, to_json
from .generation import FieldNames, Generation
from .inspection import inspection
from .keys import Caller
from .program_runs import Hold, OpenRun
from .program_schemas import GenerateRequest
from .program_written import StepGeneration, Written
from .prompts import Prompt, check_model, room_after
from .record import record_of
from .sampling import Wanted, check_priority, check_queue, check_stream_options, draft_sources, sampling_params
from .schemas import CompletionRequest
from .services import Services, Text
from .streaming import event
from .tool_use import tool_use
from .wire import TextChoice, TextCompletion

DEFAULT_MAX_TOKENS = 128
"""As in the language."""


async def generate(
    services: Services, request: Request, caller: Caller, run: OpenRun, body: GenerateRequest
) -> Response:
    """Let the model go on. Several choices become branches. Raises what a completion raises, and BranchBusy."""
    check_stream_options(body)
    check_queue(1, body.n or 1, services.text.get().info)
    branch = run.branch(body.branch)
    new = body.n if body.n and body.n > 1 else 0  # branches
    services.programs.check_room(run.tenant, branches=new)
    run.check_room(new)
    hold = run.hold(branch)
    try:
        written = Written(run, branch, body.name)
        generation, writer = await _generation(services, request, caller, written, hold, body)
        response = await respond(generation, writer, record_of(request.scope), stream=body.stream)
    except BaseException:
        hold.let_go()
        raise
    if not body.stream:
        await generation.close()
    return response


async def _generation(
    services: Services, request: Request, caller: Caller, written: Written, hold: Hold, body: GenerateRequest
) -> tuple[StepGeneration, StepWriter]:
    text = services.text.get()
    model = check_model(services, text, body.model)
    asked = _as_completion(body)
    read, prompt = await _reading(text, asked, written)
    sampling = _sampling(text, body, prompt)
    engine_request = EngineRequest(
        id=f"cmpl-{uuid.uuid4().hex}",
        ids=prompt.ids,
        sampling=read.held.for_engine(sampling),
        grammar=read.held.spec,
        origin=written.origin(caller),
        priority=check_priority(body, caller),
        speculation=draft_sources(body),
        timeout_s=body.timeout or services.config.request_timeout_s,
        ahead=ahead_of(request),
    )
    record = record_of(request.scope)
    check = inspection(services.config.check_share, read.held.expected, engine_request.id, services.metrics)
    fields = FieldNames("branch", read.held.places)
    generation = StepGeneration(services, [engine_request], fields, record, lambda: read.reader(sampling), check)
    generation.belongs_to(written.run, hold)
    inner = CompletionWriter(asked, text, [prompt], [engine_request], model, read.written)
    return generation, StepWriter(inner, written, sampling.n, show_ids=bool(body.return_token_ids))


async def _reading(text: Text, asked: CompletionRequest, written: Written) -> tuple[Reading, Prompt]:
    """What the output is held to, and the prompt; it tells of the tools, if any may be called."""
    found = constraint(asked)
    tools = tool_use(asked, found)
    told = tuple(
        ToolSpec(tool.name, tool.description, to_json(tool.parameters or tool.schema), tool.strict)
        for tool in (tools.tools if tools.usable else ())
    )
    prompt = Prompt(await written.encode(told), None)
    return reading(text, asked, found, [prompt]), prompt


def _sampling(text: Text, body: GenerateRequest, prompt: Prompt) -> SamplingParams:
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if most == 0:
        raise InvalidParameter("max_tokens: must be at least 1", "max_tokens")
    room = room_after(text, len(prompt.ids), "branch")
    return sampling_params(body, Wanted(most, body.logprobs), room, text.info)


def _as_completion(body: GenerateRequest) -> CompletionRequest:
    """The same wishes for a prompt that is told apart."""
    shared = GenerateRequest.model_fields.keys() & CompletionRequest.model_fields.keys()
    wishes = {name: getattr(body, name) for name in shared}
    return CompletionRequest.model_construct(**{**wishes, "prompt": [], "return_token_ids": True})


class StepWriter:
    """Writes the answer of a generating step; puts the choices into the run once they are whole."""

    def __init__(self, inner: CompletionWriter, written: Written, count: int, *, show_ids: bool) -> None:
        self._inner = inner
        self._written = written
        self._show_ids = show_ids
        branch = written.branch
        self._branches = [branch.path] if count == 1 else branch.names(count)

    async def whole(self, generation: Generation) -> TextCompletion:
        answer = await self._inner.whole(generation)
        await self._settle(answer.choices)
        answer.choices = [self._shown(choice) for choice in answer.choices]
        return answer

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        folded = [Folded() for _ in self._branches]
        async with aclosing(self._inner.chunks(generation)) as flow:
            async for chunk in flow:
                for piece in chunk.choices:
                    folded[piece.index].add(piece)
                chunk.choices = [self._shown(piece) for piece in chunk.choices]
                yield event(chunk)
        await self._settle([choice.choice() for choice in folded])

    def _shown(self, choice: TextChoice) -> TextChoice:
        shown = replace(choice, branch=self._branches[choice.index] if choice.finish_reason else UNSET)
        return shown if self._show_ids else replace(shown, token_ids=UNSET, prompt_token_ids=UNSET)

    async def _settle(self, choices: Sequence[TextChoice]) -> None:
        said = [await self._said(choice) for choice in choices]
        put = self._written.put if len(choices) == 1 else self._written.put_apart
        for choice, transcript in zip(choices, said, strict=True):
            put(transcript, choice.text if choice.content is UNSET else choice.content)

    async def _said(self, choice: TextChoice) -> Transcript:
        ids = [] if choice.token_ids is UNSET else choice.token_ids
        stop = None if choice.stop_reason is UNSET else choice.stop_reason
        kept = await kept_ids(ids, choice.text, stop, self._written.run.side)
        made = [] if choice.tool_calls is UNSET or choice.finish_reason == "length" else choice.tool_calls
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in made)
        content = None if choice.content is UNSET else choice.content
        return self._written.prompt.generated(choice.text, kept, content, calls)
