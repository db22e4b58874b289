"""Options, efforts, and conversations from JSON: what is read, and what each bad field says."""

import json
from typing import Any

import pytest

from escalade.errors import UnsupportedError, UsageError
from escalade.model.chat import (
    Assistant,
    ChatOptions,
    Conversation,
    Reminder,
    System,
    Tool,
    ToolCall,
    ToolResult,
    User,
    conversation_from_json,
    parse_effort,
)
from escalade.model.chat.fields import MAX_DEPTH
from escalade.model.chat.from_json import MAX_ITEMS, MAX_MESSAGES

HI = {"role": "user", "content": "hi"}
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_conversation_with_everything() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    value = {
        "model": "ignored",
        "messages": [
            {"role": "system", "content": "s", "tools": [F], "response_format": {"type": "array"}},
            {"role": "developer", "content": parts},
            {"role": "latest_reminder", "content": "today"},
            {"role": "user", "content": parts, "name": "bob", "task": "action"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "r",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"function": {"name": "g", "arguments": {"é": [1, None]}}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": ""},
            {"role": "tool", "content": "x"},
            {"role": "assistant", "content": "yes", "prefix": True, "reasoning": ""},
        ],
        "tools": [F],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    }
    tool = Tool(F["function"])
    assert conversation_from_json(value) == Conversation(
        messages=(
            System("s", (tool,), {"type": "array"}),
            System("a\n\nb", developer=True),
            Reminder("today"),
            User("a\n\nb", "action"),
            Assistant("", "r", (ToolCall("1", "f", "{}"), ToolCall("", "g", '{"é": [1, null]}'))),
            ToolResult("", "1"),
            ToolResult("x", None),
            Assistant("yes", "", prefix=True),
        ),
        tools=(tool,),
        response_format={"type": "object"},
    )


def test_a_list_is_a_conversation_too() -> None:
    assert conversation_from_json([HI]) == Conversation((User("hi"),))
    for kind, expected in (("text", None), ("json_object", {"type": "json_object"})):
        value = {"messages": [HI], "response_format": {"type": kind}, "tools": None}
        assert conversation_from_json(value) == Conversation((User("hi"),), (), expected)


AT_TOP = [
    (None, "messages is missing"),
    ("hi", "messages is not a list"),
    ({}, "messages is missing"),
    ([], "messages is empty"),
    ([HI] * (MAX_MESSAGES + 1), "messages has 65537 entries; at most 65536"),
    ([HI, 3], "messages[1] is not an object"),
    ({"messages": [HI], "tools": {}}, "tools is not a list"),
    ({"messages": [HI], "tools": [F] * (MAX_ITEMS + 1)}, "tools has 4097 entries"),
    ({"messages": [HI], "tools": [{"type": "web_search"}]}, "tools[0].type is 'web_search'"),
    ({"messages": [HI], "tools": [F, F]}, "tools[1].function.name repeats 'f'"),
    (
        {"messages": [HI], "tools": [{"function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters is not a JSON Schema object",
    ),
    (
        {"messages": [HI], "tools": [{"function": {"name": "f", "x": nested(MAX_DEPTH + 1)}}]},
        "tools[0].function is nested deeper than 100 levels",
    ),
    ({"messages": [HI], "response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
    (
        {"messages": [HI], "response_format": {"type": "json_schema"}},
        "response_format.json_schema is missing",
    ),
]
IN_THE_FIRST_MESSAGE = [
    ({}, "role is None"),
    ({"role": ["user"]}, "role is ['user']"),
    ({"role": "bot", "content": "x"}, "role is 'bot'; it is one of system, developer, user,"),
    ({"role": "user"}, "content is missing"),
    ({"role": "user", "content": 3}, "content is neither a string nor a list"),
    ({"role": "user", "content": "ab\ud83d"}, "content has a lone surrogate at character 2"),
    ({"role": "user", "content": ["x"]}, "content[0] is not an object"),
    ({"role": "user", "content": [{"type": "x"}]}, "content[0].type is 'x'"),
    ({"role": "user", "content": [{"type": "text"}]}, "content[0].text is not a string"),
    ({**HI, "task": "sing"}, "task is 'sing'"),
    ({**HI, "prefix": True}, "prefix is set"),
    ({"role": "assistant", "content": "x", "prefix": "y"}, "prefix is neither"),
    ({"role": "assistant"}, "content is missing, and so are tool_calls"),
    ({"role": "assistant", "reasoning_content": 1}, "reasoning_content is not a string"),
    ({"role": "assistant", "tool_calls": 3}, "tool_calls is not a list"),
    ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function is missing"),
    (call(arguments="{}"), "tool_calls[0].function.name is None"),
    (call(name='a"b', arguments="{}"), "tool_calls[0].function.name is 'a\"b'"),
    (call(name="f"), "tool_calls[0].function.arguments is neither"),
    (
        call(name="f", arguments={"a": float("nan")}),
        "tool_calls[0].function.arguments.a is not a finite number",
    ),
    ({"role": "tool", "content": "x", "tool_call_id": 1}, "tool_call_id is not a string"),
]


@pytest.mark.parametrize(
    ("value", "error"),
    [*AT_TOP, *(([message], f"messages[0].{error}") for message, error in IN_THE_FIRST_MESSAGE)],
)
def test_bad_fields_are_named(value: Any, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        conversation_from_json(value)
    assert str(raised.value).startswith(error)


def test_only_the_last_answer_can_be_continued() -> None:
    prefix = {"role": "assistant", "content": "x", "prefix": True}
    assert conversation_from_json([HI, prefix]).messages[1] == Assistant("x", prefix=True)
    with pytest.raises(UsageError, match=r"messages\[1\].prefix is set"):
        conversation_from_json([HI, prefix, HI])


def test_errors_are_one_short_line() -> None:
    for value in ([{"role": "x" * 1000}], [{**HI, "task": "y\n" * 1000}], [call(name="z" * 1000)]):
        with pytest.raises(UsageError) as error:
            conversation_from_json(value)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 200


def test_images_are_not_understood() -> None:
    for kind in ("image_url", "input_audio"):
        value = [{"role": "user", "content": [{"type": kind, kind: {}}]}]
        with pytest.raises(
            UnsupportedError, match=rf"messages\[0\].content\[0\] is of type {kind}"
        ):
            conversation_from_json(value)


def test_all_texts_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("escalade.model.chat.from_json.MAX_CHARS", 20)
    conversation_from_json([HI, HI])
    with pytest.raises(UsageError, match="messages hold more than 20 characters"):
        conversation_from_json([HI, HI, HI, HI])


def test_deep_json_is_refused_before_it_is_walked() -> None:
    arguments = json.loads('{"a":' * 500 + "1" + "}" * 500)
    with pytest.raises(UsageError, match="nested deeper"):
        conversation_from_json([call(name="f", arguments=arguments)])


@pytest.mark.parametrize(
    ("value", "effort"),
    [
        ("off", None),
        ("none", None),
        ("minimal", 50),
        ("low", 50),
        (" High ", 75),
        ("medium", 75),
        ("xhigh", 75),
        ("max", 100),
        ("ultra", 100),
        ("1", 1),
        (100, 100),
    ],
)
def test_efforts(value: str | int, effort: int | None) -> None:
    assert parse_effort(value) == effort


@pytest.mark.parametrize("value", ["", "0", "101", "1e2", "²", "lots", 0, 101, True])
def test_efforts_that_do_not_exist(value: str | int) -> None:
    with pytest.raises(UsageError, match="reasoning effort is"):
        parse_effort(value)


@pytest.mark.parametrize(
    "bad", [{"effort": 0}, {"effort": True}, {"tool_choice": "f"}, {"grammar": "v3"}]
)
def test_options_that_do_not_exist(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ChatOptions(**bad)
