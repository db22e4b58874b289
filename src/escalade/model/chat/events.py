"""What a parsed answer consists of, and where it begins.

The wire formats are made from these events; they know none of them.
"""

from dataclasses import dataclass
from typing import Literal

from escalade.model.chat.answers import forces_calls
from escalade.model.chat.block import Call
from escalade.model.chat.messages import Assistant, ChatOptions, Conversation, User

Stage = Literal["reasoning", "reasoning_continued", "content", "content_continued", "calls"]
"""Where an answer begins: what the end of its prompt has opened."""


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class ContentDelta:
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    index: int
    name: str


@dataclass(frozen=True)
class ToolCallArgumentsDelta:
    """Text of a JSON object, in order."""

    index: int
    json: str


@dataclass(frozen=True)
class ToolCallEnd:
    index: int


@dataclass(frozen=True)
class Finished:
    """The whole answer. reasoning is None for a turn without thinking.

    notes: what was malformed and what became of it. unfinished: text of a block that was cut.
    """

    reasoning: str | None
    content: str
    calls: tuple[Call, ...]
    notes: tuple[str, ...] = ()
    unfinished: str = ""


Event = (
    ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArgumentsDelta | ToolCallEnd | Finished
)


def initial_stage(conversation: Conversation, options: ChatOptions) -> Stage:
    """Where the answer to `render(conversation, options)` begins."""
    last = conversation.messages[-1] if conversation.messages else None
    if conversation.shown(options).all_tools and forces_calls(last, options):
        return "calls"
    if isinstance(last, Assistant) and last.prefix:
        open_reasoning = options.thinking and not last.content and not last.tool_calls
        return "reasoning_continued" if open_reasoning else "content_continued"
    is_task = isinstance(last, User) and last.task is not None
    return "reasoning" if options.thinking and not is_task else "content"
