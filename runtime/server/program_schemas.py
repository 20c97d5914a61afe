"""The bodies of `/v1/programs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .schema_base import Body, FirstFault
from .schemas import GenerationBody, PromptIds
from .tool_schemas import MAX_TOOLS, Tool, ToolChoice

MAX_FORK = 128
Role = Literal["system", "developer", "user", "assistant", "tool"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
BranchName = Annotated[str, Field(max_length=200)]


class ProgramRequest(Body):
    """A run to be opened."""

    name: Name = Field(description="The program's name: what its runs have in common is learnt by it.")
    model: str | None = Field(None, description="Name of the served model; the one there is if left out.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the chat template.")
    idle_timeout: float | None = Field(
        None, gt=0, le=3600, description="Seconds without a step after which the run is closed; 600 if left out."
    )


class ProgramTurn(Body):
    role: Role
    content: str
    name: str | None = Field(None, max_length=256, description="Of a tool; if left out, as in the call it answers.")
    tool_call_id: str | None = Field(None, max_length=256, description="The call that a turn of a tool answers.")

    @model_validator(mode="after")
    def answers_a_call(self) -> ProgramTurn:
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise PydanticCustomError("tool_call_id", "tool_call_id goes with the role tool, and is needed there")
        return self


class AppendRequest(Body):
    """Text for a branch. Of several fields, `messages` come first, then `open`, `text` or `token_ids`, and `close`."""

    branch: BranchName | None = Field(None, description="The main branch if left out.")
    messages: Annotated[list[ProgramTurn], FirstFault(), Field(max_length=8192)] | None = Field(
        None, description="Whole turns."
    )
    open: Role | None = Field(None, description="Begin a turn that goes on with the steps after this one.")
    text: str | None = Field(None, description="More of the open turn; without turns, plain text.")
    token_ids: PromptIds | None = Field(None, description="The same as token ids, which are kept as they are.")
    close: bool | None = Field(None, description="End the open turn.")


class GenerateRequest(GenerationBody):
    """What the model is to write next in a branch: in the open turn, else in a turn of the assistant's; without turns,
    after the text."""

    branch: BranchName | None = Field(None, description="The main branch if left out.")
    name: Name | None = Field(None, description="Of the variable that the output becomes.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Log-probabilities with so many alternatives.")
    tools: Annotated[list[Tool], FirstFault(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Functions that the model may call; it is told of them."
    )
    reasoning: bool | None = Field(None, description="As for completions.")
    tool_choice: ToolChoice | None = Field(None, description="As for chat.")
    parallel_tool_calls: bool | None = Field(None, description="As for chat.")


class SelectRequest(Body):
    """Texts, of which the likeliest goes on the branch."""

    branch: BranchName | None = Field(None, description="The main branch if left out.")
    name: Name | None = Field(None, description="Of the variable that the choice becomes.")
    choices: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=65536)]], FirstFault(), Field(min_length=1, max_length=1024)
    ]
    method: Literal["mean", "greedy", "unconditional"] | None = Field(None, description="How they are compared.")
    timeout: float | None = Field(None, gt=0, le=86400, description="Seconds after which the request is given up.")


class ForkRequest(Body):
    """Branches that go on from where this one is."""

    branch: BranchName | None = Field(None, description="The main branch if left out.")
    count: int = Field(ge=1, le=MAX_FORK)


class JoinRequest(Body):
    """Branches that are over; their variables are handed to the branch that they were forked from."""

    branch: BranchName | None = Field(None, description="The main branch if left out.")
    branches: Annotated[list[BranchName], FirstFault(), Field(min_length=1, max_length=1024)]
