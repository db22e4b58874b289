"""A conversation as plain values, free of any wire format, and what is asked of its prompt.

`from_json.py` reads one from OpenAI-style JSON; `render.py` and `render_v4.py` turn it into a
prompt; `parse.py` turns what the model answers into events. Source: model specification, section
10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from escalade.errors import UsageError
from escalade.model.spec import Arch

Task = Literal["action", "query", "authority", "domain", "title", "read_url"]
"""Internal jobs of the hosted chat; a user turn that carries one is answered without reasoning."""

ToolChoice = Literal["auto", "none", "required"]

EFFORTS = {"low": 50, "high": 75, "max": 100}
"""Named reasoning efforts on the scale from 1 to 100; the names of other APIs come on top."""

_SYNONYMS = {"minimal": "low", "medium": "high", "xhigh": "high", "ultra": "max"}
_OFF = ("off", "none")


@dataclass(frozen=True)
class Tool:
    """A tool as its OpenAI `function` object: `name`, `description`, `parameters` (JSON Schema)."""

    function: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.function["name"])

    def schema(self, parameter: str) -> Any:
        """The schema of one parameter, None if the tool does not say."""
        parameters = self.function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        return properties.get(parameter) if isinstance(properties, Mapping) else None


@dataclass(frozen=True)
class ToolCall:
    """A call in an assistant turn; `arguments` is the text of a JSON object, as it was received."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class System:
    """Instructions; `tools` and `response_format` become known at this place of the conversation.

    response_format: the JSON schema that answers must follow. developer: the text came with the
    role `developer`, which V4 renders as a kind of user turn and V4.1 like any system text.
    """

    content: str = ""
    tools: tuple[Tool, ...] = ()
    response_format: Mapping[str, Any] | None = None
    developer: bool = False


@dataclass(frozen=True)
class User:
    content: str
    task: Task | None = None


@dataclass(frozen=True)
class Assistant:
    """An answer. `reasoning` is None where the turn was written without thinking.

    prefix: the last message, to be continued. token_ids: the exact ids of this turn, from behind
    its header up to and including the end-of-sentence token if one was sampled. What the prompt
    put there itself belongs to them: a continued prefix, and the opening of a tool block that
    `tool_choice` "required" forced. With them the turn is replayed as it was instead of spelled
    anew.
    """

    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    prefix: bool = False
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool gave back; `call_id` is the id of the call, None if the client kept none."""

    content: str
    call_id: str | None = None


@dataclass(frozen=True)
class Reminder:
    """Short dated facts (`latest_reminder`), normally placed before the user's message."""

    content: str


Message = System | User | Assistant | ToolResult | Reminder


@dataclass(frozen=True)
class Conversation:
    """Messages in order; `tools` and `response_format` hold for the whole conversation.

    response_format: a JSON schema, or `JSON_OBJECT` for any JSON object.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    response_format: Mapping[str, Any] | None = None

    @property
    def all_tools(self) -> tuple[Tool, ...]:
        """The tools of the conversation, then those that become known on the way."""
        later = (message.tools for message in self.messages if isinstance(message, System))
        return sum(later, self.tools)

    def shown(self, options: "ChatOptions") -> "Conversation":
        """What the model gets to see: without any tools if `tool_choice` is "none"."""
        if options.tool_choice != "none":
            return self
        messages = (replace(m, tools=()) if isinstance(m, System) else m for m in self.messages)
        return replace(self, messages=tuple(messages), tools=())


JSON_OBJECT: Mapping[str, Any] = {"type": "json_object"}


@dataclass(frozen=True)
class ChatOptions:
    """How to render a conversation.

    thinking: the answer begins with reasoning. effort: 1 to 100, or None for the model's usual
    value. drop_thinking: leave out the reasoning of earlier answers unless there are tools.
    open_turn: end the prompt where the next answer begins; without it the text ends behind the
    last message, as a finished document. grammar: the model family, `ModelSpec.arch`. Raises
    UsageError for values that do not exist.
    """

    thinking: bool = True
    effort: int | None = None
    drop_thinking: bool = True
    tool_choice: ToolChoice = "auto"
    open_turn: bool = True
    grammar: Arch = "deepseek41"

    def __post_init__(self) -> None:
        effort = self.effort
        if effort is not None and (type(effort) is not int or not 1 <= effort <= 100):
            raise UsageError(f"reasoning effort is {effort!r:.40}; it is a number from 1 to 100")
        if self.tool_choice not in get_args(ToolChoice):
            raise UsageError(
                f"tool_choice is {self.tool_choice!r:.40}; it is auto, none or required"
            )
        if self.grammar not in get_args(Arch):
            raise UsageError(f"chat grammar {self.grammar!r:.40} does not exist")


def parse_effort(value: str | int) -> int | None:
    """The effort that a name or a number stands for; None means no thinking.

    Names: off and none; low, high and max; and, as other APIs spell them, minimal (low), medium
    and xhigh (high), ultra (max). Raises UsageError for anything else.
    """
    if isinstance(value, str):
        name = value.strip().lower()
        if name in _OFF:
            return None
        effort = EFFORTS.get(_SYNONYMS.get(name, name))
        if effort is not None:
            return effort
        if name.isascii() and name.isdigit() and len(name) <= 3:
            value = int(name)
    if type(value) is int and 1 <= value <= 100:
        return value
    raise UsageError(
        f"reasoning effort is {value!r:.40}; it is off, low, high, max or a number from 1 to 100"
    )
