"""Chat templates that state tools, calls and results in the manner of each family, as short as they can be."""

from __future__ import annotations

STATED = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"


def template(call: str, *, result: str, begin: str = "", end: str = "</s>", between: str = "", head: str = "") -> str:
    """`call` writes one call, of which it is given `name`, `arguments` and `id`; `result` writes the `content` of a
    tool; `begin` and `end` stand around the calls of a turn."""
    return f"""{head}{STATED}
{{%- for m in messages %}}
    {{%- if m.role == 'tool' %}}{{%- set content = m.content %}}{result}
    {{%- elif m.tool_calls %}}{{{{ '<assistant>{begin}' }}}}
        {{%- for each in m.tool_calls %}}
            {{%- set name, arguments, id = each.function.name, each.function.arguments, each.id %}}{call}
            {{{{- '{between}' if not loop.last else '' }}}}
        {{%- endfor %}}{{{{ '{end}' }}}}
    {{%- else %}}{{{{ '<' ~ m.role ~ '>' ~ m.content ~ '</s>' }}}}{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}<assistant>{{%- endif %}}"""


def arguments(pair: str, between: str) -> str:
    """One by one; `pair` writes `k` and `v`."""
    last = f"{{{{ '{between}' if not loop.last else '' }}}}"
    return f"{{%- for k, v in arguments.items() %}}{pair}{last}{{%- endfor %}}"


_OUTPUT = "<｜tool▁output▁begin｜>{{ content }}<｜tool▁output▁end｜>"
_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

TOOL_TEMPLATES = {
    "mistral": template(
        """{{ '{"name": "' ~ name ~ '", "arguments": ' ~ arguments | tojson ~ ', "id": "' ~ id ~ '"}' }}""",
        begin="[TOOL_CALLS][",
        between=", ",
        end="]</s>",
        result='[TOOL_RESULTS]{"content": {{ content | tojson }}}[/TOOL_RESULTS]',
    ),
    "mistral_args": template(
        "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ arguments | tojson }}",
        result="[TOOL_RESULTS]{{ content }}[/TOOL_RESULTS]",
    ),
    "deepseek_v31": template(
        "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{{ arguments | tojson }}<｜tool▁call▁end｜>",
        begin=_OPEN,
        end=_CLOSE,
        result=_OUTPUT,
    ),
    "deepseek_v3": template(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}"
        "\n```json\n{{ arguments | tojson }}\n```<｜tool▁call▁end｜>",
        begin=_OPEN,
        between="\\n",
        end=_CLOSE,
        result=_OUTPUT,
    ),
    "pythonic": template(
        f"{{{{ name }}}}({arguments('{{ k }}={{ v | tojson }}', ', ')})",
        head="Call like this: [func_name1(params_name1=params_value1)]",
        begin="[",
        between=", ",
        end="]</s>",
        result="<tool>{{ content }}</s>",
    ),
    "functiongemma": template(
        "<start_function_call>call:{{ name }}{{ '{' }}"
        + arguments("{{ k }}:{{ '<escape>' ~ v ~ '<escape>' if v is string else v }}", ",")
        + "{{ '}' }}<end_function_call>",
        end="",
        result="<start_function_response>{{ content }}<end_function_response>",
    ),
    "harmony": template(
        "<|channel|>commentary to=functions.{{ name }} <|constrain|>json<|message|>{{ arguments | tojson }}",
        end="<|call|>",
        result="<|start|>functions to=assistant<|channel|>commentary<|message|>{{ content }}<|end|>",
    ),
}
"""Tool format → template."""
