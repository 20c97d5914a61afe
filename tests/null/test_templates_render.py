"""What a caller may give, which template is taken, and how a conversation goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from template_samples import CONTROLS, TEMPLATES
from tokenizer_samples import CHATML, chatml_folder

from bosquet.errors import ConfigError, InvalidParameter, ModelLoadError, TemplateFailed
from bosquet.runtime.templates import ChatTemplate

USER = {"role": "user", "content": "hi"}


def text(template: ChatTemplate, messages: list[Any], **how: Any) -> str:
    return "".join(segment.text for segment in template.render(messages, **how))


def plain(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}, frozenset(["<s>"]), frozenset(["<s>"]))


CONTINUED = [
    ("{{ messages[-1].content }}END", "It is ", "It is "),
    ("{{ messages[-1].content | trim }}END", "It is ", "It is"),
    ("{{ messages[-1].content | trim }} END", "It is\n\n", "It is\n\n"),  # looks as if not trimmed
    ("{{ messages[-1].content | trim }}<END>", "It is\n\n", "It is"),
    ("a\n{{ messages[-1].content | trim }}END", "", "a\n"),
    ("{{ messages[0].content }}{{ messages[-1].content }}END", "hi", "hihi"),
    ("{{ messages[-1].content }}:{{ messages[-1].content }}END", "x", "x :x"),
]


@pytest.mark.parametrize(("source", "content", "expected"), CONTINUED)
def test_continuing_the_last_message(source: str, content: str, expected: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    assert text(plain(source), messages, continue_final_message=True) == expected


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("content", ["The answer", "1. One\n2. Two\n3. ", "", "<|im_end|> as text"])
def test_continuing_in_well_known_templates(name: str, content: str) -> None:
    named = {"bos_token": CONTROLS[name][0], "eos_token": CONTROLS[name][1]}
    template = ChatTemplate({"default": TEMPLATES[name]}, named, frozenset(CONTROLS[name]), frozenset(CONTROLS[name]))
    messages = [USER, {"role": "assistant", "content": content}]
    whole = text(template, messages, add_generation_prompt=False)
    kept = content if name in ("mistral", "qwen3") else content.strip()
    assert text(template, messages, continue_final_message=True) == whole[: whole.rindex(kept) + len(kept)] or not kept
    if not kept:
        cut = text(template, messages, continue_final_message=True)
        assert whole.startswith(cut)
        assert cut.rstrip().endswith(("<|end_header_id|>", "[/INST]", "model", "</think>"))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}], "messages[0].content[1]"),
        ([{"role": "user", "content": "x", "extra": object()}], "messages[0]"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "messages[0]"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ],
)
def test_messages_of_a_wrong_shape(messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        plain(CHATML).render(messages)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_values_that_are_nested_too_deep() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidParameter, match="levels deep"):
        plain(CHATML).render([USER], tools=[{"a": deep}])


def test_only_an_assistants_text_can_be_continued() -> None:
    with pytest.raises(InvalidParameter, match="assistant") as caught:
        plain(CHATML).render([USER], continue_final_message=True)
    assert caught.value.field == "messages[0].role"
    with pytest.raises(InvalidParameter, match="no text") as caught:
        plain(CHATML).render([USER, {"role": "assistant"}], continue_final_message=True)
    assert caught.value.field == "messages[1].content"
    with pytest.raises(TemplateFailed, match="does not show"):
        plain("nothing").render([USER, {"role": "assistant", "content": "x"}], continue_final_message=True)


def test_variables_of_the_caller() -> None:
    assert text(plain("{{ mood }}{{ bos_token }}"), [USER], extra={"mood": "good"}) == "good<s>"
    with pytest.raises(InvalidParameter) as caught:
        plain("").render([USER], extra={"messages": []})
    assert caught.value.field == "chat_template_kwargs.messages"
    with pytest.raises(InvalidParameter) as caught:
        plain("").render([USER], tools=["x"])  # type: ignore[list-item]
    assert caught.value.field == "tools[0]"


def test_parts_are_joined_unless_the_template_goes_through_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]
    assert text(plain("{% for m in messages %}{{ m.content }};{% endfor %}"), messages) == "a\nb;c;"
    loop = "{% for m in messages %}{% for p in m['content'] %}{{ p.type }}={{ p.text }},{% endfor %};{% endfor %}"
    assert text(plain(loop), messages) == "text=a,text=b,;text=c,;"
    assert text(plain(loop), messages, continue_final_message=True) == "text=a,text=b,;text=c"


def test_arguments_of_calls_are_objects_for_the_template() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    assert text(plain(source), [{"role": "assistant", "tool_calls": [call]}]) == "Paris"
    broken = {"function": {"name": "f", "arguments": "{oops"}}
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert text(plain(source), [{"role": "assistant", "tool_calls": [broken]}]) == "{oops"


def test_reasoning_has_the_name_that_the_template_looks_for() -> None:
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert text(plain(source), [{"role": "assistant", "content": "x", "reasoning": "hm"}]) == "hmhm"


def test_none_is_as_absent() -> None:
    source = "{{ 'tool_calls' in messages[0] }}"
    assert text(plain(source), [{"role": "user", "content": "x", "tool_calls": None}]) == "False"


def test_the_templates_own_complaint_comes_through() -> None:
    with pytest.raises(TemplateFailed, match="refuses this conversation: roles must alternate") as caught:
        plain(TEMPLATES["mistral"]).render([USER, USER])
    assert caught.value.field == "messages"


def test_a_folder_without_a_template(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(chatml_folder(tmp_path, template=None))
    with pytest.raises(TemplateFailed, match="no chat template"):
        template.render([USER])


def test_a_template_that_does_not_compile_fails_when_it_is_used(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(chatml_folder(tmp_path, template="\n{% for %}"))
    with pytest.raises(TemplateFailed, match="does not compile: line 2"):
        template.render([USER])


def test_named_templates(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    path.write_text(json.dumps(config), encoding="utf-8")
    template = ChatTemplate.from_folder(folder)
    assert text(template, [USER]) == "plain"
    assert text(template, [USER], tools=[]) == "plain"
    assert text(template, [USER], tools=[{"type": "function"}]) == "tools"
    assert text(ChatTemplate.from_folder(folder, "tool_use"), [USER]) == "tools"
    (folder / "chat_template.jinja").write_text("file", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("documents", encoding="utf-8")
    assert text(ChatTemplate.from_folder(folder), [USER]) == "file"
    assert text(ChatTemplate.from_folder(folder, "rag"), [USER]) == "documents"
    several = ChatTemplate({"a": "1", "b": "2"}, {}, frozenset(), frozenset())
    with pytest.raises(TemplateFailed, match="one of a, b"):
        several.render([USER])
    assert text(ChatTemplate({"a": "1"}, {}, frozenset(), frozenset()), [USER]) == "1"


def test_another_template_in_place_of_the_folders(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    file = tmp_path / "own.jinja"
    file.write_text("own {{ messages[0].content }}", encoding="utf-8")
    assert text(ChatTemplate.from_folder(folder, file), [USER]) == "own hi"
    assert text(ChatTemplate.from_folder(folder, str(file)), [USER]) == "own hi"
    assert text(ChatTemplate.from_folder(folder, "{{ messages[0].role }}"), [USER]) == "user"
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate.from_folder(folder, tmp_path / "none.jinja")
    with pytest.raises(ConfigError, match="does not compile: line 1"):
        ChatTemplate.from_folder(folder, "{% if %}")
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        ChatTemplate.from_folder(tmp_path / "nowhere")
