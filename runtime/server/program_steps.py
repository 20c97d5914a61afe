"""Steps of a program over HTTP that need no model: text is appended, branches part and meet.

Knows nothing of routes. A step that fails leaves its branch as it was.
"""

from __future__ import annotations

from msgspec import Struct

from ...errors import BranchBusy, InvalidParameter
from ...prompts.tokens import encode, encode_for_fork
from ...types import Segment
from .program_branch import Branch, Draft, Value
from .program_runs import OpenRun
from .program_schemas import AppendRequest, ForkRequest, JoinRequest
from .prompts import check_ids, check_length, room_after
from .services import Services


class BranchState(Struct, kw_only=True):
    """`tokens` are encoded, `characters` wait for the next step that needs them. `open` is the open turn's role."""

    branch: str
    tokens: int
    characters: int
    open: str | None
    variables: list[str]


class Forked(Struct):
    branches: list[str]


class Joined(Struct):
    """For each variable its value in each branch, null where a branch has none."""

    variables: dict[str, list[Value | None]]


def state_of(branch: Branch) -> BranchState:
    said = branch.transcript
    waiting = sum(len(getattr(op, "text", "")) for op in said.pending)
    return BranchState(
        branch=branch.path, tokens=len(said.ids), characters=waiting, open=branch.role, variables=list(branch.values)
    )


async def append(services: Services, run: OpenRun, body: AppendRequest) -> BranchState:
    """Write to a branch. Raises InvalidParameter, PromptTooLong, BranchBusy and Overloaded."""
    text = services.text.get()
    branch = run.branch(body.branch)
    check_ids(body.token_ids or (), text, "token_ids")
    room_after(text, len(branch.transcript.ids) + len(body.token_ids or ()), "token_ids", scoring=True)
    added = [(message.content, f"messages[{i}].content") for i, message in enumerate(body.messages or ())]
    for content, field in [*added, (body.text or "", "text")]:
        check_length(text, [Segment(content, False)], field)
    services.programs.check_room(run.tenant, sum(len(content) for content, _ in added) + len(body.text or ""))
    with run.step(branch):
        draft = Draft(branch)
        draft.add(body)
        if body.token_ids:
            said = draft.flush()
            said = await encode(said, run.side, run.layout) if said.pending else said
            draft.transcript = said.generated(text.tokenizer.decode(body.token_ids, skip_special=False), body.token_ids)
        if body.close:
            draft.close("close")
        draft.put()
    return state_of(branch)


async def fork(services: Services, run: OpenRun, body: ForkRequest) -> Forked:
    """Branches that have in common what was said up to here, by reference. Raises BranchBusy and Overloaded."""
    branch = run.branch(body.branch)
    run.check_room(body.count)
    services.programs.check_room(run.tenant, branches=body.count)
    with run.step(branch):
        branch.transcript = await encode_for_fork(branch.transcript, run.side, run.layout)
        children = [branch.fork(branch.transcript) for _ in range(body.count)]
        for child in children:
            run.add(child)
    return Forked([child.path for child in children])


def join(run: OpenRun, body: JoinRequest) -> Joined:
    """Take the variables of branches over as lists. They are over, and so is what was forked from them. Raises
    InvalidParameter, UnknownHandle and BranchBusy."""
    branch = run.branch(body.branch)
    joined = []
    for index, name in enumerate(body.branches):
        field = f"branches[{index}]"
        found = run.branch(name, field)
        if not found.is_forked_from(branch) or found in joined:
            raise InvalidParameter(
                f"{field}: {name[:64]!r} was not forked from {branch.path!r}, or is named twice", field
            )
        joined.append(found)
    over = [other for other in run.branches.values() if other in joined or any(map(other.is_below, joined))]
    busy = next((other for other in [branch, *over] if other.held), None)
    if busy is not None:
        raise BranchBusy(f"branches: branch {busy.path!r} is in the middle of another step", "branches")
    names = dict.fromkeys(name for other in joined for name in other.values)
    values: dict[str, list[Value | None]] = {name: [other.values.get(name) for other in joined] for name in names}
    branch.values.update(values)
    for other in over:
        run.remove(other)
    run.note(branch)
    return Joined(values)
