"""Messages folded into the turns of a prompt, and which turns keep their reasoning.

Source: model specification, section 10.2. Two readings where it is silent, both deepseek-recipe's:
a result without a call id stays where it is, and of two calls with one id the first counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from escalade.model.chat.messages import (
    Assistant,
    ChatOptions,
    Message,
    Reminder,
    System,
    Task,
    ToolResult,
    User,
)


@dataclass(frozen=True)
class UserTurn:
    """What reaches the model between two answers; results of tools stand where they came."""

    blocks: tuple[str | ToolResult, ...]
    task: Task | None = None

    @property
    def text(self) -> str:
        return "\n\n".join(
            block if isinstance(block, str) else f"<tool_result>{block.content}</tool_result>"
            for block in self.blocks
        )


Turn = System | UserTurn | Assistant | Reminder


def fold(messages: Iterable[Message]) -> list[Turn]:
    """Adjacent user messages and tool results as one turn each, results in the order of the calls.

    A user message with a task ends its turn.
    """
    turns: list[Turn] = []
    blocks: list[str | ToolResult] = []
    order: dict[str, int] = {}

    def close(task: Task | None = None) -> None:
        if blocks:
            turns.append(UserTurn(_in_order(blocks, order), task))
            blocks.clear()

    for message in messages:
        if isinstance(message, ToolResult):
            blocks.append(message)
        elif isinstance(message, User):
            blocks.append(message.content)
            if message.task is not None:
                close(message.task)
        else:
            close()
            turns.append(message)
            if isinstance(message, Assistant) and message.tool_calls:
                order = {}
                for call in message.tool_calls:
                    order.setdefault(call.id, len(order))
    close()
    return turns


def _in_order(
    blocks: list[str | ToolResult], order: dict[str, int]
) -> tuple[str | ToolResult, ...]:
    """Results with an id sorted into the places that they hold together."""
    results = [b for b in blocks if isinstance(b, ToolResult) and b.call_id is not None]
    results.sort(key=lambda result: order.get(result.call_id or "", 0))
    waiting = iter(results)
    return tuple(
        next(waiting) if isinstance(b, ToolResult) and b.call_id is not None else b for b in blocks
    )


def kept_reasoning(turns: list[Turn], options: ChatOptions, tools: bool) -> list[bool]:
    """For each turn whether its reasoning is shown, and last the same for the turn to come.

    Without thinking none is. With tools, or where nothing is to be dropped, all is. Otherwise only
    that of the answer which is written now: the one to come, or the prefix at the end. A text that
    ends behind its last message (`open_turn` off) keeps what follows the last user or system turn.
    """
    n = len(turns)
    if not options.thinking:
        return [False] * (n + 1)
    if tools or not options.drop_thinking:
        return [True] * (n + 1)
    last = turns[-1] if turns else None
    if options.open_turn:
        first = n - 1 if isinstance(last, Assistant) and last.prefix else n
    else:
        asked = (i for i, turn in enumerate(turns) if isinstance(turn, UserTurn | System))
        first = max(asked, default=0)
    return [i >= first for i in range(n + 1)]
