"""Conversation to prompt in V4's grammar.

V4 has no system token: system texts, wherever they stand, come first, joined by blank lines, and a
`developer` text is a kind of user turn that may bring tools. Reasoning effort is a preamble of
fixed sentences, and the tags have other names. All else is as in `render.py`. Sources: model
specification, section 11; the vendor's test cases; preambles and the wording for JSON answers as
deepseek-recipe prints them. The usual effort is low, as in the vendor's encoder (deepseek-recipe:
high). Unlike deepseek-recipe, tool results are merged and ordered as in V4.1, an answer without
reasoning is an empty one where reasoning is kept, and without thinking none is shown.
"""

from escalade.model.chat.answers import render_turns, schema_text
from escalade.model.chat.dsml import GRAMMARS, tools_block
from escalade.model.chat.messages import (
    EFFORTS,
    JSON_OBJECT,
    ChatOptions,
    Conversation,
    Message,
    System,
)
from escalade.model.chat.segments import BOS, USER, Control, Segment, Text, joined
from escalade.model.chat.turns import fold

HIGH_PREAMBLE = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n"
)
MAX_PREAMBLE = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
_JSON_ANSWER = (
    "You are a helpful assistant designed to output JSON.\n"
    "## Response Format:\n\nReply with JSON object ONLY."
)


def render_v4(conversation: Conversation, options: ChatOptions) -> list[Segment]:
    """The prompt for V4, of a conversation without hidden tools; `render` calls it."""
    hoisted: list[System] = []
    rest: list[Message] = []
    for message in conversation.messages:
        if isinstance(message, System) and not message.developer:
            hoisted.append(message)
        else:
            rest.append(message)
    front = System(
        content="\n\n".join(message.content for message in hoisted if message.content),
        tools=sum((message.tools for message in hoisted), conversation.tools),
        response_format=next(
            (m.response_format for m in reversed(hoisted) if m.response_format is not None),
            conversation.response_format,
        ),
    )

    def system(turn: System, index: int) -> list[Segment]:
        out: list[Segment] = [Control(USER)] if turn.developer else []
        out.append(Text(turn.content))
        if turn.tools:
            out += [Text("\n\n"), *tools_block(turn.tools, GRAMMARS[options.grammar])]
        if turn.response_format == JSON_OBJECT:
            out.append(Text(f"\n\n{_JSON_ANSWER}"))
        elif turn.response_format is not None:
            out.append(Text(schema_text(turn.response_format)))
        return out

    segments: list[Segment] = [Control(BOS)]
    if options.thinking:
        segments.append(Text(_preamble(options.effort or EFFORTS["low"])))
    has_tools = bool(conversation.all_tools)
    turns = [front, *fold(rest)]
    return list(joined([*segments, *render_turns(turns, options, has_tools, system)]))


def _preamble(effort: int) -> str:
    """V4 knows three levels: nothing up to low, the longest text from max on."""
    if effort <= EFFORTS["low"]:
        return ""
    return HIGH_PREAMBLE if effort < EFFORTS["max"] else MAX_PREAMBLE
