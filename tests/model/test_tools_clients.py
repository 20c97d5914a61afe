"""Clients that people use, end to end with the embedded model: what they ask is held to, what comes they take."""

from __future__ import annotations

import json
import warnings
from typing import Any, Literal

import openai
import pytest
from live_engine import Served
from pydantic import BaseModel, ConfigDict, Field

with warnings.catch_warnings():  # what they warn of while they are loaded is their own affair
    warnings.simplefilter("ignore")
    import instructor
    from langchain_openai import ChatOpenAI
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = pytest.mark.filterwarnings("default")

MODEL = "SmolLM2-135M-Instruct"
ASK: list[Any] = [{"role": "user", "content": "It is 21 degrees and sunny in Paris. Report it."}]


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome", "Oslo"]


class Report(BaseModel):
    """A report of the weather."""

    model_config = ConfigDict(extra="forbid")

    place: Place  # a schema of its own, so that there is a $ref
    sky: Literal["sunny", "cloudy"]
    degrees: int = Field(ge=-50, le=50)


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120)


TOOL: Any = {
    "type": "function",
    "function": {"name": "report", "description": "Report the weather.", "parameters": Report.model_json_schema()},
}
COMMON: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 80}


def test_openai_create_and_stream(client: openai.OpenAI) -> None:
    options = COMMON | {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**options)
    (made,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].message.content is None
    assert whole.choices[0].finish_reason == "tool_calls"
    assert made.function.name == "report"
    Report.model_validate_json(made.function.arguments)
    with client.chat.completions.stream(**options) as flow:
        final = flow.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or ()
    assert streamed.function.arguments == made.function.arguments
    assert streamed.id.startswith("call_")
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content is None


def test_openai_the_result_goes_back(client: openai.OpenAI) -> None:
    named = COMMON | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "report"}}}
    first = client.chat.completions.create(**named)
    assert first.choices[0].finish_reason == "stop"
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Thank you."}
    second = client.chat.completions.create(
        **COMMON | {"messages": [*ASK, message, result], "tools": [TOOL], "tool_choice": "none"}
    )
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None


def test_openai_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**COMMON, response_format=Report)
    assert isinstance(answer.choices[0].message.parsed, Report)
    tool = openai.pydantic_function_tool(Report, name="report")
    called = client.chat.completions.parse(**COMMON, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Report)
    with client.chat.completions.stream(**COMMON, response_format=Report) as flow:
        events = [event.type for event in flow]
        final = flow.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed
    assert "content.done" in events


def test_openai_hears_what_is_relaxed(client: openai.OpenAI) -> None:
    items = {"type": "integer", "minimum": 0, "maximum": 99_999}  # too many to keep apart
    schema = {"type": "array", "items": items, "minItems": 1, "maxItems": 3, "uniqueItems": True}
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = client.chat.completions.create(**COMMON, response_format=form)
    relaxed = answer.model_extra["x_bosquet"]["relaxed"]
    assert [(entry["path"], entry["keyword"]) for entry in relaxed] == [("#", "uniqueItems")]
    first, *_ = client.chat.completions.create(**COMMON, response_format=form, stream=True)
    assert first.model_extra["x_bosquet"]["relaxed"] == relaxed
    form["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(**COMMON, response_format=form)
    assert caught.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize("native", [False, True])
def test_pydantic_ai(served: Served, native: bool) -> None:
    provider = OpenAIProvider(base_url=f"{served.url}/v1", api_key="none")
    agent = Agent(
        OpenAIChatModel(MODEL, provider=provider),
        output_type=NativeOutput(Report) if native else Report,
        model_settings={"temperature": 0, "max_tokens": 120},
        retries=0,
    )
    assert isinstance(agent.run_sync(ASK[0]["content"]).output, Report)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(client: openai.OpenAI, mode: str) -> None:
    made = instructor.from_openai(client, mode=instructor.Mode[mode])
    found = made.chat.completions.create(**COMMON, response_model=Report, max_retries=0)
    assert isinstance(found, Report)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_structured_output(served: Served, method: Any) -> None:
    model = ChatOpenAI(base_url=f"{served.url}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=80)
    assert isinstance(model.with_structured_output(Report, method=method).invoke(ASK[0]["content"]), Report)


def test_langchain_tools(served: Served) -> None:
    model = ChatOpenAI(base_url=f"{served.url}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=80)
    bound = model.bind_tools([TOOL], tool_choice="any", parallel_tool_calls=False)
    (made,) = bound.invoke(ASK[0]["content"]).tool_calls
    Report.model_validate(made["args"])
    whole: Any = None
    for chunk in bound.stream(ASK[0]["content"]):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [made["args"]]


def test_json_is_text(client: openai.OpenAI) -> None:
    """Arguments are a string in every client's hands, and stand as the model wrote them."""
    answer = client.chat.completions.create(**COMMON, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    arguments = answer.choices[0].message.tool_calls[0].function.arguments
    assert list(json.loads(arguments)) == ["place", "sky", "degrees"]
