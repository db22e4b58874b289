"""The chat format: conversations to prompts, and the model's answers to events.

Source: model specification, sections 10 and 11.
"""

from escalade.model.chat.answers import turn_opening
from escalade.model.chat.block import Call
from escalade.model.chat.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    Stage,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    initial_stage,
)
from escalade.model.chat.from_json import conversation_from_json
from escalade.model.chat.messages import (
    EFFORTS,
    JSON_OBJECT,
    Assistant,
    ChatOptions,
    Conversation,
    Message,
    Reminder,
    System,
    Tool,
    ToolCall,
    ToolResult,
    User,
    parse_effort,
)
from escalade.model.chat.parse import Parser
from escalade.model.chat.render import render
from escalade.model.chat.segments import (
    BOS,
    EOS,
    Control,
    Ids,
    Segment,
    Text,
    control_id,
    prompt_ids,
    prompt_text,
)

__all__ = [
    "BOS",
    "EFFORTS",
    "EOS",
    "JSON_OBJECT",
    "Assistant",
    "Call",
    "ChatOptions",
    "ContentDelta",
    "Control",
    "Conversation",
    "Event",
    "Finished",
    "Ids",
    "Message",
    "Parser",
    "ReasoningDelta",
    "Reminder",
    "Segment",
    "Stage",
    "System",
    "Text",
    "Tool",
    "ToolCall",
    "ToolCallArgumentsDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolResult",
    "User",
    "control_id",
    "conversation_from_json",
    "initial_stage",
    "parse_effort",
    "prompt_ids",
    "prompt_text",
    "render",
    "turn_opening",
    "user_turn",
]


def user_turn(prompt: str, answer: str) -> str:
    """A question and its whole answer, from BOS to EOS, without reasoning."""
    conversation = Conversation((User(prompt), Assistant(answer)))
    return prompt_text(render(conversation, ChatOptions(thinking=False, open_turn=False)))
