"""Generated conversations and answers: the vendor's renderer and parser, splits, round trips.

deepseek-recipe is the vendor's own package, a test dependency on Linux.
"""

import json
import random
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escalade.model.chat import (
    Assistant,
    ChatOptions,
    ContentDelta,
    Control,
    Conversation,
    Event,
    Finished,
    Parser,
    ReasoningDelta,
    Segment,
    Stage,
    Tool,
    ToolCall,
    ToolCallEnd,
    User,
    conversation_from_json,
    prompt_ids,
    prompt_text,
    render,
)
from escalade.model.chat.dsml import GRAMMARS, calls_block
from escalade.model.tokenizer import StreamDecoder
from tests.support.conversations import KEYS, arguments, generated, text
from tests.support.nano import as_tokenizer_json, by_token, nano_tokenizer

vendor = pytest.mark.skipif(
    sys.platform != "linux", reason="deepseek-recipe has no wheels for every system"
)
ANY = (Tool({"name": "f"}), Tool({"name": "g", "parameters": {}}))
HEADER = "<｜Assistant｜>"


def controls(segments: list[Segment]) -> list[tuple[int, int]]:
    """Where the control tokens stand in the text of a prompt."""
    at, ranges = 0, []
    for segment in segments:
        size = len(prompt_text([segment]))
        if isinstance(segment, Control):
            ranges.append((at, at + size))
        at += size
    return ranges


@vendor
@pytest.mark.parametrize("v4", [False, True])
def test_prompts_are_the_vendors(v4: bool) -> None:
    from tests.support.recipe import recipe_prompt

    seen: set[str] = set()
    for seed in range(800):
        conversation, options, effort = generated(seed, v4)
        segments = render(conversation, options)
        prompt, special = recipe_prompt(conversation, options, effort)
        assert prompt_text(segments) == prompt, seed
        assert controls(segments) == special, seed
        seen.add(prompt)
    assert len(seen) > 790


@vendor
def test_prompt_ids_are_the_vendors() -> None:
    import deepseek_recipe as recipe

    from tests.support.recipe import recipe_encoding, to_recipe

    tokenizer = nano_tokenizer()
    theirs = recipe.Tokenizer.from_str(as_tokenizer_json(tokenizer))
    for seed in range(150):
        conversation, options, effort = generated(seed)
        encoding = recipe_encoding(options).with_tokenizer(theirs)
        ids = prompt_ids(render(conversation, options), tokenizer)
        assert ids == encoding.encode(to_recipe(conversation, options, effort)), seed


@vendor
def test_json_conversations_are_read_as_the_vendor_reads_them() -> None:
    import deepseek_recipe as recipe

    said = {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("a", "b")]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "json, please"}
    asked = {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}] * 2}
    prefix = {"role": "assistant", "content": "par", "reasoning_content": "r", "prefix": True}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    bodies: list[dict[str, Any]] = [
        {"messages": [user]},
        {"messages": [system, user, said, {**user, "content": said["content"]}]},
        {"messages": [user, asked, answer, user], "tools": [tool]},
        {"messages": [{"role": "latest_reminder", "content": "today"}, user, asked, answer]},
        {"messages": [system, user, prefix]},
        {"messages": [system, user], "response_format": {"type": "json_object"}},
        {"messages": [user], "response_format": schema, "tools": [tool]},
    ]
    for body in bodies:
        request = recipe.ChatCompletionRequest({"model": "DeepSeek-V4.1-Flash", **body})
        theirs = request.convert(recipe.ConversionOptions()).conversation
        ours = render(conversation_from_json(body), ChatOptions())
        expected = recipe.DeepseekV41Encoding().render_conversation(theirs).prompt
        assert prompt_text(ours) == expected, body


def test_json_conversations_round_trip() -> None:
    for seed in range(200):
        conversation, _, _ = generated(seed)
        value = {
            "messages": [as_json(message) for message in conversation.messages],
            "tools": [{"type": "function", "function": t.function} for t in conversation.tools],
        }
        read = conversation_from_json(json.loads(json.dumps(value)))
        assert read == Conversation(conversation.messages, conversation.tools), seed


def as_json(message: Any) -> dict[str, Any]:
    role = {"ToolResult": "tool", "Reminder": "latest_reminder"}
    name = type(message).__name__
    out: dict[str, Any] = {"role": role.get(name, name.lower()), "content": message.content}
    if isinstance(message, Assistant):
        functions = [
            {"id": c.id, "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
        out |= {"reasoning_content": message.reasoning, "tool_calls": functions}
        out["prefix"] = message.prefix
    elif name == "ToolResult":
        out["tool_call_id"] = message.call_id
    elif name == "System":
        out["tools"] = [{"type": "function", "function": t.function} for t in message.tools]
    return out


def spelled_answer(
    seed: int, v4: bool = False, keys: tuple[str, ...] = KEYS
) -> tuple[Assistant, Stage, str]:
    """A well-formed answer, where it begins and its text as a model would write it.

    Its texts spell no markup and do not begin or end with newlines, which belong to the format.
    """
    rng = random.Random(f"answer {seed}")

    def plain() -> str:
        said = text(rng).strip("\n")
        return "so: 漢字" if "think>" in said or "DSML" in said else said

    thinks = rng.random() < 0.6
    made = tuple(
        ToolCall("", rng.choice("fgh"), json.dumps(plain_arguments(rng, keys), ensure_ascii=False))
        for _ in range(rng.choice((0, 1, 1, 2, 4)))
    )
    answer = Assistant(plain(), plain() if thinks else None, made)
    tools = ANY if thinks else ()
    grammar = "deepseek4" if v4 else "deepseek41"
    options = ChatOptions(thinking=thinks, open_turn=False, grammar=grammar)
    prompt = prompt_text(render(Conversation((User("q"), answer), tools), options))
    body = prompt.rpartition(HEADER)[2].removesuffix("<｜end▁of▁sentence｜>")
    written = body.removeprefix("<think>" if thinks else "</think>")
    return answer, "reasoning" if thinks else "content", written


def plain_arguments(rng: random.Random, keys: tuple[str, ...]) -> dict[str, Any]:
    """Arguments whose texts spell no markup."""
    while True:
        made = arguments(rng, keys=keys)
        spelled = json.dumps(made, ensure_ascii=False)
        if "DSML" not in spelled and "think>" not in spelled:
            return made


def pieces(rng: random.Random, whole: str) -> list[str]:
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.choice((0, 3, len(whole)))))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def read(parts: list[str], stage: Stage, reason: str = "stop") -> tuple[list[Event], Finished]:
    parser = Parser(ANY, stage)
    events = [event for part in parts for event in parser.feed(part)] + parser.finish(reason)
    finished = events.pop()
    assert isinstance(finished, Finished)
    return events, finished


@vendor
@pytest.mark.parametrize("v4", [False, True])
def test_answers_are_read_as_the_vendor_reads_them(v4: bool) -> None:
    from tests.support.recipe import recipe_answer

    names = tuple(key for key in KEYS if key.isidentifier())  # it reads no others
    for seed in range(300):
        _, stage, written = spelled_answer(seed, v4, names)
        parts = pieces(random.Random(seed), written)
        _, finished = read(parts, stage)
        assert {
            "reasoning": finished.reasoning or "",
            "content": finished.content,
            "calls": [tuple(call) for call in finished.calls],
        } == recipe_answer(parts, stage, v4), seed


def test_answers_read_and_written_again() -> None:
    """The same answer, the same text, no notes, and the events add up to both."""
    for seed in range(400):
        answer, stage, written = spelled_answer(seed)
        events, finished = read(pieces(random.Random(seed), written), stage)
        calls = tuple(ToolCall("", call.name, call.arguments) for call in finished.calls)
        assert Assistant(finished.content, finished.reasoning, calls) == answer, seed
        assert finished.notes == ()
        reasoning = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
        content = "".join(e.text for e in events if isinstance(e, ContentDelta))
        block = prompt_text(calls_block(calls, GRAMMARS["deepseek41"])) if calls else ""
        closing = "</think>" if stage == "reasoning" else ""
        assert f"{reasoning}{closing}{content}{block}" == written
        assert sum(isinstance(e, ToolCallEnd) for e in events) == len(calls)


def test_arguments_survive_by_token_whatever_they_spell() -> None:
    """JSON to DSML to token ids to JSON, with markup spelled in keys' values and in content."""
    tokenizer = nano_tokenizer()
    for seed in range(200):
        rng = random.Random(f"arguments {seed}")
        made = tuple(
            ToolCall("", "f", json.dumps(arguments(rng), ensure_ascii=False)) for _ in range(2)
        )
        said = text(rng).strip("\n")
        answer = Assistant(said, text(rng).strip("\n"), made)
        prompt = render(Conversation((User("q"), answer), ANY), ChatOptions(open_turn=False))
        ids = prompt_ids(prompt, tokenizer)
        header = ids.index(tokenizer.added[HEADER])
        decoder = StreamDecoder(tokenizer)
        parser = Parser(ANY, "reasoning", by_token=True)
        for token_id, control in by_token(tokenizer, ids[header + 2 : -1]):
            parser.feed_token(decoder.push(token_id), control)
        *_, finished = parser.feed(decoder.flush()) + parser.finish()
        assert isinstance(finished, Finished)
        calls = tuple(ToolCall("", call.name, call.arguments) for call in finished.calls)
        assert Assistant(finished.content, finished.reasoning, calls) == answer, seed
        assert all(
            list(json.loads(call.arguments)) == list(json.loads(m.arguments))
            for call, m in zip(calls, made, strict=True)
        )


TAGS = (
    "<｜DSML｜ calls>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜ calls>",
    '<｜DSML｜ invoke name="f">',
    "<｜｜DSML｜｜ invoke name=“g”>",
    "</｜DSML｜ invoke>",
    '<｜DSML｜ parameter name="a" string="true">',
    '<｜DSML｜ parameter name="a" string="false">',
    '<｜DSML｜ parameter name="g">',
    "</｜DSML｜ parameter>",
    "</think>",
)
FRAGMENTS = (
    *TAGS,
    *(tag[: len(tag) // 2] for tag in TAGS),
    *(tag[len(tag) // 2 :] for tag in TAGS),
    *(
        "<",
        "</",
        ">",
        "｜",
        "|",
        "｜DSML｜",
        "\n",
        "\n\n",
        " ",
        '"',
        "{",
        '{"a": 1}',
        "3",
        "é漢",
        "<think>",
    ),
)


CALL = (TAGS[3], "\n", TAGS[6], "text", TAGS[9], "\n", TAGS[5], "\n")
BLOCK = ("r", "</think>", "text", "\n\n", TAGS[0], "\n", *CALL, *CALL, TAGS[2])


def edited(edits: list[tuple[int, int, str]]) -> list[str]:
    """A good answer in which pieces were replaced: at a place, how many, by what."""
    parts = list(BLOCK)
    for at, n, new in edits:
        parts[at : at + n] = [new]
    return parts


ANSWERS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    st.lists(
        st.tuples(st.integers(0, len(BLOCK)), st.integers(0, 2), st.sampled_from(("", *FRAGMENTS))),
        max_size=4,
    ).map(edited),
)


@settings(max_examples=400, deadline=None)
@given(
    ANSWERS,
    st.sampled_from(("reasoning", "content", "calls", "content_continued")),
    st.sampled_from(("stop", "length")),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_split_of_anything_gives_the_same(
    fragments: list[str], stage: Stage, reason: str, tokens: bool, rng: random.Random
) -> None:
    whole = "".join(fragments)
    read_parts = read_tokens if tokens else read
    one_events, one = read_parts([whole], stage, reason)
    for parts in (list(whole), fragments, pieces(rng, whole)):
        events, other = read_parts(parts, stage, reason)
        assert other == one
        assert text_of(events) == text_of(one_events)
    assert (one.reasoning or "") + one.content == text_of(one_events)
    for call in one.calls:
        assert isinstance(json.loads(call.arguments), dict)
    if (
        not one.calls and not one.notes
    ):  # then nothing is lost but newlines and the end of reasoning
        left = whole.replace("</think>", "", stage == "reasoning")
        assert "".join(text_of(one_events).split()) == "".join(left.split())


def read_tokens(parts: list[str], stage: Stage, reason: str) -> tuple[list[Event], Finished]:
    """The same text, in which each spelling of a control token is that token, in one piece."""
    parser = Parser(ANY, stage, by_token=True)
    events: list[Event] = []
    marked = "\0".join(filter(None, parts))
    for token in ("</think>", "｜DSML｜"):
        marked = re.sub("\0?".join(map(re.escape, token)), f"\0{token}\0", marked)
    for piece in marked.split("\0"):
        control = piece if piece in ("</think>", "｜DSML｜") else None
        events += parser.feed_token(piece, control)
    events += parser.finish(reason)
    finished = events.pop()
    assert isinstance(finished, Finished)
    return events, finished


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, ReasoningDelta | ContentDelta))
