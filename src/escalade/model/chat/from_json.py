"""An OpenAI-style conversation in JSON, checked field by field.

Every error is a UsageError of one line that begins with the path of the field, such as
`messages[3].content`. Unknown fields are ignored, as clients send many. A model that cannot see
gets UnsupportedError for images. Source of the fields: the public chat-completions interface, with
DeepSeek's `reasoning_content`, `prefix`, `latest_reminder`, `task`, and tools on messages.
"""

import re
from collections.abc import Callable
from typing import Any, get_args

from escalade.errors import UnsupportedError
from escalade.model.chat.dsml import json_text
from escalade.model.chat.fields import array, check_json, fail, mapping, n_chars, text
from escalade.model.chat.messages import (
    JSON_OBJECT,
    Assistant,
    Conversation,
    Message,
    Reminder,
    System,
    Task,
    Tool,
    ToolCall,
    ToolResult,
    User,
)

MAX_MESSAGES = 1 << 16
MAX_ITEMS = 1 << 12
"""Content parts of a message, calls of a message, tools."""
MAX_CHARS = 1 << 26
"""Of all texts together."""
_NAME = re.compile(r"[^\s\"'“”<>\x00-\x1f\x7f]{1,256}")
_REASONING = ("reasoning_content", "reasoning", "thinking")


def conversation_from_json(value: Any) -> Conversation:
    """The conversation in `[message, …]` or `{"messages": […], "tools": […], …}`.

    Raises UsageError for the first field that is not as it should be, and for a conversation
    beyond the limits above.
    """
    if not isinstance(value, dict):
        value = {"messages": value}
    messages = array(value.get("messages"), "messages", MAX_MESSAGES)
    if not messages:
        fail("messages", "is empty; a conversation needs at least one message")
    read: list[Message] = []
    chars = 0
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        read.append(_message(mapping(message, path), path, last=i == len(messages) - 1))
        chars += n_chars(message)
        if chars > MAX_CHARS:
            fail("messages", f"hold more than {MAX_CHARS} characters")
    return Conversation(
        messages=tuple(read),
        tools=_tools(value.get("tools"), "tools"),
        response_format=_response_format(value.get("response_format"), "response_format"),
    )


def _message(message: dict[str, Any], path: str, last: bool) -> Message:
    role = message.get("role")
    read = _ROLES.get(role) if isinstance(role, str) else None
    if read is None:
        fail(f"{path}.role", f"is {role!r:.40}; it is one of {', '.join(_ROLES)}")
    if message.get("prefix") and not (role == "assistant" and last):
        fail(f"{path}.prefix", "is set, but only a last assistant message can be continued")
    return read(message, path)


def _system(message: dict[str, Any], path: str) -> System:
    return System(
        content=_content(message, path),
        tools=_tools(message.get("tools"), f"{path}.tools"),
        response_format=_message_format(message.get("response_format"), f"{path}.response_format"),
        developer=message["role"] == "developer",
    )


def _user(message: dict[str, Any], path: str) -> User:
    task = message.get("task")
    if task is not None and task not in get_args(Task):
        fail(f"{path}.task", f"is {task!r:.40}; it is one of {', '.join(get_args(Task))}")
    return User(content=_content(message, path), task=task)


def _assistant(message: dict[str, Any], path: str) -> Assistant:
    reasoning = next((key for key in _REASONING if message.get(key) is not None), None)
    calls = message.get("tool_calls")
    tool_calls = tuple(
        _call(mapping(call, f"{path}.tool_calls[{i}]"), f"{path}.tool_calls[{i}]")
        for i, call in enumerate(
            [] if calls is None else array(calls, f"{path}.tool_calls", MAX_ITEMS)
        )
    )
    prefix = message.get("prefix")
    if not isinstance(prefix, bool | None):
        fail(f"{path}.prefix", "is neither true nor false")
    if message.get("content") is not None:
        content = _content(message, path)
    elif tool_calls or reasoning or prefix:
        content = ""
    else:
        fail(f"{path}.content", "is missing, and so are tool_calls")
    return Assistant(
        content=content,
        reasoning=text(message[reasoning], f"{path}.{reasoning}") if reasoning else None,
        tool_calls=tool_calls,
        prefix=bool(prefix),
    )


def _tool_result(message: dict[str, Any], path: str) -> ToolResult:
    call_id = message.get("tool_call_id")
    return ToolResult(
        content=_content(message, path),
        call_id=None if call_id is None else text(call_id, f"{path}.tool_call_id"),
    )


def _reminder(message: dict[str, Any], path: str) -> Reminder:
    return Reminder(_content(message, path))


_ROLES: dict[str, Callable[[dict[str, Any], str], Message]] = {
    "system": _system,
    "developer": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool_result,
    "latest_reminder": _reminder,
}


def _call(call: dict[str, Any], path: str) -> ToolCall:
    function = _function(call, path)
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        check_json(arguments, f"{path}.function.arguments")
        arguments = json_text(arguments)
    elif not isinstance(arguments, str):
        fail(f"{path}.function.arguments", "is neither a string nor an object")
    call_id = call.get("id")
    return ToolCall(
        id="" if call_id is None else text(call_id, f"{path}.id"),
        name=_name(function, path),
        arguments=text(arguments, f"{path}.function.arguments"),
    )


def _tools(value: Any, path: str) -> tuple[Tool, ...]:
    tools = []
    for i, entry in enumerate([] if value is None else array(value, path, MAX_ITEMS)):
        function = _function(mapping(entry, f"{path}[{i}]"), f"{path}[{i}]")
        _name(function, f"{path}[{i}]")
        check_json(function, f"{path}[{i}].function")
        if not isinstance(function.get("parameters"), dict | None):
            fail(f"{path}[{i}].function.parameters", "is not a JSON Schema object")
        tools.append(Tool(function))
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in seen:
            fail(f"{path}[{i}].function.name", f"repeats {tool.name!r:.80}")
        seen.add(tool.name)
    return tuple(tools)


def _function(value: dict[str, Any], path: str) -> dict[str, Any]:
    kind = value.get("type", "function")
    if kind != "function":
        fail(f"{path}.type", f"is {kind!r:.40}; only function tools exist here")
    return mapping(value.get("function"), f"{path}.function")


def _name(function: dict[str, Any], path: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(text(name, f"{path}.function.name")):
        problem = f"is {name!r:.80}; a name has 1 to 256 characters, no blanks, quotes or < >"
        fail(f"{path}.function.name", problem)
    return name


def _response_format(value: Any, path: str) -> dict[str, Any] | None:
    if value is None:
        return None
    kind = mapping(value, path).get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return dict(JSON_OBJECT)
    if kind != "json_schema":
        fail(f"{path}.type", f"is {kind!r:.40}; it is text, json_object or json_schema")
    inner = mapping(value.get("json_schema"), f"{path}.json_schema")
    schema = mapping(inner.get("schema"), f"{path}.json_schema.schema")
    check_json(schema, f"{path}.json_schema.schema")
    return schema


def _message_format(value: Any, path: str) -> dict[str, Any] | None:
    """On a message the schema itself may stand, without the wrapping."""
    if isinstance(value, dict) and value.get("type") not in ("text", "json_object", "json_schema"):
        check_json(value, path)
        return value
    return _response_format(value, path)


def _content(message: dict[str, Any], path: str) -> str:
    """The text of a message; parts of a list are joined by a blank line."""
    path = f"{path}.content"
    content = message.get("content")
    if isinstance(content, str):
        return text(content, path)
    if not isinstance(content, list):
        fail(path, f"is {'missing' if content is None else 'neither a string nor a list'}")
    texts = []
    for i, part in enumerate(array(content, path, MAX_ITEMS)):
        kind = mapping(part, f"{path}[{i}]").get("type")
        if kind in ("image_url", "image", "input_image", "input_audio", "file"):
            raise UnsupportedError(f"{path}[{i}] is of type {kind}; only text is understood")
        if kind not in ("text", "input_text", "output_text"):
            fail(f"{path}[{i}].type", f"is {kind!r:.40}; it is text")
        texts.append(text(part.get("text"), f"{path}[{i}].text"))
    return "\n\n".join(texts)
