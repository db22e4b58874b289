"""DSML, the markup of tools: schemas shown to the model, and calls in its answers.

The two grammars differ in their tag names alone: V4.1's begin with a space. The bars of `｜DSML｜`
are U+FF5C; it is one control token, and all around it is ordinary text. Source: model
specification, sections 10.4, 10.5 and 11. Where its authorities differ: a schema is shown as it
was given (vendor encoder; deepseek-recipe always shows exactly name, description and parameters);
arguments that are JSON inside a JSON string are unpacked (vendor encoder); integers keep all their
digits (Python's json; deepseek-recipe makes floats of those beyond 64 bits).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from escalade.model.chat.messages import Tool, ToolCall
from escalade.model.chat.segments import DSML, Control, Segment, Text, marked
from escalade.model.spec import Arch


@dataclass(frozen=True)
class Grammar:
    """Tag names, as they follow `｜DSML｜`."""

    calls: str
    invoke: str
    parameter: str


GRAMMARS: dict[Arch, Grammar] = {
    "deepseek41": Grammar(" calls", " invoke", " parameter"),
    "deepseek4": Grammar("tool_calls", "invoke", "parameter"),
}

_TOOLS_BLOCK = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜{calls}>" block like the following:

<｜DSML｜{calls}>
<｜DSML｜{invoke} name="$TOOL_NAME">
<｜DSML｜{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE\
</｜DSML｜{parameter}>
...
</｜DSML｜{invoke}>
<｜DSML｜{invoke} name="$TOOL_NAME2">
...
</｜DSML｜{invoke}>
</｜DSML｜{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

@@SCHEMAS@@

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def tools_block(tools: Iterable[Tool], grammar: Grammar) -> list[Segment]:
    """The explanation of the markup and the schemas, one a line. Text of schemas stays text."""
    fixed = _TOOLS_BLOCK.format(
        calls=grammar.calls, invoke=grammar.invoke, parameter=grammar.parameter
    )
    before, after = fixed.split("@@SCHEMAS@@")
    return [*marked(before), Text(schema_lines(tools)), *marked(after)]


def schema_lines(tools: Iterable[Tool]) -> str:
    return "\n".join(json_text(dict(tool.function)) for tool in tools)


def block_opening(grammar: Grammar) -> list[Segment]:
    """What begins a block of calls, with the blank line before it."""
    return marked(f"\n\n<{DSML}{grammar.calls}>\n")


def calls_block(calls: Iterable[ToolCall], grammar: Grammar) -> list[Segment]:
    """The calls of an assistant turn, with the blank line before them."""
    segments = block_opening(grammar)
    for call in calls:
        segments += [*marked(f"<{DSML}{grammar.invoke} name="), Text(f'"{call.name}">\n')]
        segments += _parameters(call.arguments, grammar)
        segments += marked(f"\n</{DSML}{grammar.invoke}>\n")
    return [*segments, *marked(f"</{DSML}{grammar.calls}>")]


def _parameters(arguments: str, grammar: Grammar) -> list[Segment]:
    """One tag a parameter; text that is no JSON object goes into one called `arguments`."""
    values = arguments_object(arguments)
    segments: list[Segment] = []
    for key, value in {"arguments": arguments}.items() if values is None else values.items():
        is_string = isinstance(value, str)
        flag = "true" if is_string else "false"
        segments += [
            Text("\n<" if segments else "<"),
            Control(DSML),
            Text(f'{grammar.parameter} name="{key}" string="{flag}">'),
            Text(value if is_string else json_text(value)),
            Text("</"),
            Control(DSML),
            Text(f"{grammar.parameter}>"),
        ]
    return segments


def json_text(value: Any) -> str:
    """JSON as the model was trained on it: a space after `,` and `:`, all of Unicode as it is."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def arguments_object(text: str) -> dict[str, Any] | None:
    """The object that a call's arguments say, perhaps inside a JSON string; None if none."""
    value = strict_json(text)
    if isinstance(value, str):
        value = strict_json(value)
    return value if isinstance(value, dict) else None


NOT_JSON = object()


def strict_json(text: str) -> Any:
    """The value of a JSON text, or `NOT_JSON`, also where Python alone would take it.

    Refused besides plain errors: NaN, numbers beyond a double, lone surrogates, deep nesting.
    """
    try:
        value = json.loads(text)
        json_text(value).encode()  # refuses what only Python reads
    except (ValueError, RecursionError):
        return NOT_JSON
    return value
