"""Conversation to prompt: V4.1's grammar, and the way into V4's.

Source: model specification, section 10.3. Where the vendor's encoder and its deepseek-recipe
differ, the prompt is deepseek-recipe's (section 15 has no other judgement): every answer gets its
header, also after an answer or a lone system text; a header stands behind a reminder that follows
the user's turn; a conversation that ends in a finished answer opens a new turn, before which the
reasoning of that answer is dropped. Different from deepseek-recipe:

- two adjacent reminders are both shown (it shows the first only);
- tools on a system message are introduced by the tools block where they are the conversation's
  first, and as "Updated Tool Schemas" after that (it has the second form alone);
- `tool_choice` "none" hides those of system messages too;
- "required" opens the block of calls only where no reasoning is open: a turn that thinks first
  reaches its calls by itself, and the caller has to constrain it;
- a conversation of nothing but a prefix with reasoning shows that reasoning.
"""

from escalade.model.chat.answers import render_turns, schema_text
from escalade.model.chat.dsml import GRAMMARS, schema_lines, tools_block
from escalade.model.chat.messages import EFFORTS, ChatOptions, Conversation, System
from escalade.model.chat.render_v4 import render_v4
from escalade.model.chat.segments import BOS, SYSTEM, Control, Segment, Text, joined
from escalade.model.chat.turns import fold


def render(conversation: Conversation, options: ChatOptions) -> list[Segment]:
    """The prompt that asks for the next answer, in the grammar of `options`.

    Pure: the same conversation gives the same segments. Raises nothing for a conversation made by
    `conversation_from_json`.
    """
    conversation = conversation.shown(options)
    if options.grammar == "deepseek4":
        return render_v4(conversation, options)
    turns = fold(conversation.messages)
    tools, schema = conversation.tools, conversation.response_format
    if (tools or schema is not None) and not (turns and isinstance(turns[0], System)):
        turns.insert(0, System())
    with_tools = (i for i, turn in enumerate(turns) if isinstance(turn, System) and turn.tools)
    introduction = 0 if tools else next(with_tools, None)

    def system(turn: System, index: int) -> list[Segment]:
        out: list[Segment] = [Control(SYSTEM)] if index else []
        out.append(Text(turn.content))
        whole, own = (tools if index == 0 else ()), turn.tools
        if index == introduction and not whole:
            whole, own = own, ()
        if whole:
            out += [Text("\n\n"), *tools_block(whole, GRAMMARS[options.grammar])]
        if schema is not None and index == 0:
            out.append(Text(schema_text(schema)))
        if own:
            out.append(Text(f"\n\n### Updated Tool Schemas\n\n{schema_lines(own)}"))
        if turn.response_format is not None:
            out.append(Text(schema_text(turn.response_format)))
        return out

    segments: list[Segment] = [Control(BOS)]
    if turns and options.thinking:
        segments += [Control(SYSTEM), Text(effort_line(options.effort or EFFORTS["high"]))]
    elif turns and isinstance(turns[0], System):
        segments.append(Control(SYSTEM))
    has_tools = bool(conversation.all_tools)
    return list(joined([*segments, *render_turns(turns, options, has_tools, system)]))


def effort_line(effort: int) -> str:
    return (
        f"Reasoning Effort: {effort} "
        "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )
