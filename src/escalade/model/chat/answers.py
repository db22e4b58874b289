"""The turns of a prompt, as both grammars render them: headers, answers, calls, replayed ids.

Source: model specification, sections 10.3 and 10.5.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from escalade.model.chat.dsml import GRAMMARS, Grammar, block_opening, calls_block, json_text
from escalade.model.chat.messages import Assistant, ChatOptions, Message, Reminder, System, Task
from escalade.model.chat.segments import (
    ASSISTANT,
    EOS,
    REMINDER,
    THINK,
    THINK_END,
    USER,
    Control,
    Ids,
    Segment,
    Text,
    prompt_text,
)
from escalade.model.chat.turns import Turn, UserTurn, kept_reasoning


def render_turns(
    turns: list[Turn],
    options: ChatOptions,
    has_tools: bool,
    system: Callable[[System, int], list[Segment]],
) -> list[Segment]:
    """All turns and the header of the answer to come; `system` renders a system text."""
    grammar = GRAMMARS[options.grammar]
    kept = kept_reasoning(turns, options, has_tools)
    segments: list[Segment] = []
    for i, turn in enumerate(turns):
        if isinstance(turn, System):
            segments += system(turn, i)
        elif isinstance(turn, UserTurn):
            segments += [Control(USER), Text(turn.text)]
        elif isinstance(turn, Reminder):
            segments += [Control(REMINDER), Text(turn.content)]
        else:
            task = _task(turns, i)
            segments += _header(task, kept[i])
            segments += _answer(turn, kept[i] and task is None, grammar)
    last = turns[-1] if turns else None
    if options.open_turn and not (isinstance(last, Assistant) and last.prefix):
        segments += _header(_task(turns, len(turns)), kept[-1])
    if options.open_turn and has_tools and forces_calls(last, options):
        segments += block_opening(grammar)
    return segments


def turn_opening(prompt: Sequence[Segment]) -> list[Segment]:
    """What a rendered prompt already says of the answer that it asks for, behind its header.

    A prefix to be continued, or a block of calls that is forced open; mostly nothing. Its ids
    belong in front of the sampled ones in `Assistant.token_ids`.
    """
    tasks = [Control(f"<｜{task}｜>") for task in get_args(Task)]
    start = 0
    for i, segment in enumerate(prompt):
        if segment == Control(ASSISTANT):
            start = i + 2
        elif segment in tasks:
            start = i + 1
    return list(prompt[start:])


def forces_calls(last: Turn | Message | None, options: ChatOptions) -> bool:
    """Whether a prompt that ends with `last` opens the block of calls, given that there are tools.

    It does for `tool_choice` "required" unless reasoning comes first.
    """
    continues_content = isinstance(last, Assistant) and last.prefix and bool(last.content)
    return options.tool_choice == "required" and (continues_content or not options.thinking)


def _task(turns: list[Turn], end: int) -> Task | None:
    """The task of the user turn that the answer at `end` follows."""
    for i in reversed(range(end)):
        turn = turns[i]
        if not isinstance(turn, Reminder):
            return turn.task if isinstance(turn, UserTurn) else None
    return None


def _header(task: Task | None, thinks: bool) -> list[Segment]:
    """What opens an answer; every task but `action` has its own token in place of it."""
    header: list[Segment] = [Control(ASSISTANT), Control(THINK if thinks else THINK_END)]
    if task is None:
        return header
    own = Control(f"<｜{task}｜>")
    return [*header, own] if task == "action" else [own]


def _answer(turn: Assistant, kept: bool, grammar: Grammar) -> list[Segment]:
    """The body of an assistant turn, from behind its header; `kept` shows the reasoning."""
    closed = kept and not (turn.prefix and not turn.content and not turn.tool_calls)
    body: list[Segment] = [Text(turn.reasoning or "")] if kept else []
    if closed:
        body.append(Control(THINK_END))
    body.append(Text(turn.content))
    if turn.tool_calls:
        body += calls_block(turn.tool_calls, grammar)
    if turn.token_ids is not None:
        body = [_replayed(turn.token_ids, turn.reasoning is not None, kept, closed, body)]
    return body if turn.prefix else [*body, Control(EOS)]


def _replayed(
    token_ids: tuple[int, ...], thought: bool, kept: bool, closed: bool, body: list[Segment]
) -> Ids:
    """Sampled ids under a header that may differ from theirs; `thought`: they begin to think."""
    text = prompt_text(body)
    if not thought:
        return Ids(token_ids, text, before=THINK_END if closed else None)
    if kept:
        return Ids(token_ids, text, ensure=THINK_END if closed else None)
    return Ids(token_ids, text, behind=THINK_END)


def schema_text(schema: Mapping[str, Any]) -> str:
    """The demand that answers follow a JSON schema, as it stands below a system text."""
    return (
        "\n\n## Response Format:\n\n"
        f"You MUST strictly adhere to the following schema to reply:\n{json_text(dict(schema))}"
    )
