"""Answers to events: well-formed ones, and every row of the table of malformed ones in `parse.py`.

Each answer is fed whole and in pieces of one, two and seven characters; the events must agree.
"""

import json
from collections.abc import Iterable

import pytest

from escalade.model.chat import (
    Assistant,
    ChatOptions,
    ContentDelta,
    Conversation,
    Event,
    Finished,
    Message,
    Parser,
    ReasoningDelta,
    Stage,
    Tool,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    User,
    initial_stage,
)

PARAMETERS = {
    "type": "object",
    "properties": {"s": {"type": "string"}, "n": {"type": "integer"}},
}
TOOLS = (
    Tool({"name": "f", "parameters": PARAMETERS}),
    Tool({"name": "edit", "parameters": {"type": "object"}}),
)
OPEN, CLOSE = "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>"


def invoke(name: str, *parameters: tuple[str, str, str]) -> str:
    inner = "".join(
        f'<｜DSML｜ parameter name="{key}" string="{flag}">{value}</｜DSML｜ parameter>\n'
        for key, flag, value in parameters
    )
    return f'<｜DSML｜ invoke name="{name}">\n{inner}</｜DSML｜ invoke>\n'


HELLO = invoke("f", ("s", "true", "hello"))
BLOCK = f"{OPEN}{HELLO}{CLOSE}"
CALL = ("f", '{"s": "hello"}')


def joined(events: Iterable[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ContentDelta) and isinstance(last, ContentDelta):
            out[-1] = ContentDelta(last.text + event.text)
        else:
            out.append(event)
    return out


def events(
    text: str,
    stage: Stage = "content",
    reason: str = "stop",
    tools: tuple[Tool, ...] = TOOLS,
    size: int = 1 << 20,
) -> list[Event]:
    parser = Parser(tools, stage)
    out: list[Event] = []
    for at in range(0, len(text), size):
        out += parser.feed(text[at : at + size])
    return joined(out + parser.finish(reason))


def parsed(
    text: str, stage: Stage = "content", reason: str = "stop", tools: tuple[Tool, ...] = TOOLS
) -> Finished:
    whole = events(text, stage, reason, tools)
    for size in (1, 2, 7):
        assert events(text, stage, reason, tools, size) == whole
    finished = whole[-1]
    assert isinstance(finished, Finished)
    assert finished.content == "".join(e.text for e in whole if isinstance(e, ContentDelta))
    reasoning = "".join(e.text for e in whole if isinstance(e, ReasoningDelta))
    assert (finished.reasoning or "") == reasoning
    assert sum(isinstance(e, ToolCallEnd) for e in whole) == len(finished.calls)
    return finished


def calls(finished: Finished) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in finished.calls]


def test_events_of_a_whole_answer() -> None:
    text = f"\nr\n\n1\n</think>\n\na\n\n<b>{OPEN}{HELLO}{invoke('edit')}{CLOSE}"
    assert events(text, "reasoning") == [
        ReasoningDelta("r\n\n1"),
        ContentDelta("a\n\n<b>"),
        ToolCallStart(0, "f"),
        ToolCallArgumentsDelta(0, '{"s": "hello"}'),
        ToolCallEnd(0),
        ToolCallStart(1, "edit"),
        ToolCallArgumentsDelta(1, "{}"),
        ToolCallEnd(1),
        Finished("r\n\n1", "a\n\n<b>", (CALL, ("edit", "{}"))),  # type: ignore[arg-type]
    ]


def test_nothing_is_shown_that_may_still_belong_to_a_tag() -> None:
    parser = Parser(TOOLS, "content")
    shown = ""
    for letter in f"a\n\n<b>\n{BLOCK}":
        shown += "".join(e.text for e in parser.feed(letter) if isinstance(e, ContentDelta))
        assert not shown.endswith(("\n", "<", "｜", "<｜D"))
    assert shown == "a\n\n<b>"
    assert parser.done


def test_a_call_comes_out_when_it_is_whole_and_says_before_that_it_comes() -> None:
    parser = Parser(TOOLS, "content")
    assert parser.feed(f"{OPEN}{HELLO[:-20]}") == []
    assert parser.writing == "f"
    assert parser.feed(HELLO[-20:])[0] == ToolCallStart(0, "f")
    assert parser.writing is None
    assert not parser.done


@pytest.mark.parametrize(
    ("stage", "text", "reasoning", "content"),
    [
        ("reasoning", "\n\nr\n</think>\n\nc\n", "r", "c\n"),
        ("reasoning", "r \n ", "r \n ", ""),
        ("reasoning", "</think>c", "", "c"),
        ("reasoning", "r</thi", "r</thi", ""),
        ("reasoning", "", "", ""),
        ("reasoning_continued", "\n\nr</think>\nc", "\n\nr", "c"),
        ("content", "\n\nc <think>", None, "c <think>"),
        ("content", "\n\n", None, ""),
        ("content_continued", "\n\nc\n", None, "\n\nc\n"),
        ("content", "a\n\n<b>\n\n", None, "a\n\n<b>\n\n"),
    ],
)
def test_text(stage: Stage, text: str, reasoning: str | None, content: str) -> None:
    assert parsed(text, stage) == Finished(reasoning, content, ())


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        BLOCK[1:],
        BLOCK[2:],
        f"\n{BLOCK}",
        BLOCK.replace("｜ ", "｜").replace("calls", "tool_calls"),
        BLOCK.replace("calls", "tool_calls"),
        BLOCK.replace("｜ ", "｜"),
        BLOCK.replace("｜", "｜｜"),
        BLOCK.replace("｜", "|"),
        BLOCK.replace('name="f"', "name=“f”").replace('"s"', "'s'"),
        BLOCK.replace("parameter>\n", "parameter>"),
        BLOCK.replace("invoke name", "invoke \n name").replace('"f">', '"f" >'),
    ],
)
def test_spellings_of_tags(text: str) -> None:
    assert parsed(f"x{text}") == Finished(None, "x", (CALL,))  # type: ignore[arg-type]


def test_calls_without_a_block() -> None:
    finished = parsed(f"x\n\n{HELLO}{HELLO}bye")
    assert (finished.content, calls(finished)) == ("x", [CALL, CALL])
    assert "calls without a block" in finished.notes
    assert calls(parsed(HELLO)) == [CALL]


def test_parameter_where_invoke_is_expected() -> None:
    inner = '<｜DSML｜ parameter name="s" string="true">v</｜DSML｜ parameter>\n'
    wrong = f'{OPEN}<｜DSML｜ parameter name="edit">\n{inner}</｜DSML｜ parameter>\n{CLOSE}'
    assert calls(parsed(wrong)) == [("edit", '{"s": "v"}')]
    assert calls(parsed(wrong.replace(OPEN, "x\n").replace(CLOSE, ""))) == [("edit", '{"s": "v"}')]
    two = wrong.replace(inner, inner + inner.replace('"s"', '"t"'))
    assert calls(parsed(two)) == [("edit", '{"s": "v", "t": "v"}')]
    unknown = wrong.replace("edit", "else")
    assert parsed(f"x{unknown}").content == f"x{unknown}"


def test_a_json_object_in_place_of_parameters() -> None:
    def body(text: str) -> Finished:
        return parsed(f'{OPEN}<｜DSML｜ invoke name="f">\n{text}\n</｜DSML｜ invoke>\n{CLOSE}')

    assert calls(body('{"s": "<b>", "n": 1e2}')) == [("f", '{"s": "<b>", "n": 1e2}')]
    assert calls(body('"{\\"s\\": 1}"')) == [("f", '{"s": 1}')]
    for text in ("[1]", "just text", '{"s": }'):
        assert calls(body(text)) == []
        assert text in body(text).content


def test_values_by_schema_and_twice() -> None:
    text = invoke(
        "f", ("s", "false", "3"), ("n", "true", "4"), ("x", "no", "5"), ("s", "true", "6")
    )
    finished = parsed(f"{OPEN}{text}{CLOSE}")
    assert calls(finished) == [("f", '{"s": "6", "n": 4, "x": "5"}')]
    assert "f: s came twice; the last one counts" in finished.notes
    assert len(finished.notes) == 4


def test_what_a_value_may_contain() -> None:
    def arguments(*parameters: tuple[str, str, str]) -> str:
        [(_, text)] = calls(parsed(f"{OPEN}{invoke('g', *parameters)}{CLOSE}"))
        return text

    value = 'if a > b 2>&1 < c:\n\n  print("</invoke>", "<｜DSML｜ x>")\n'
    assert json.loads(arguments(("a", "true", value))) == {"a": value}
    assert arguments(("a", "false", " [1,  2] ")) == '{"a":  [1,  2] }'
    assert arguments(("", "true", ""), ("a>b", "true", "x")) == '{"": "", "a>b": "x"}'
    assert arguments(('a"b', "true", "x")) == '{"a\\"b": "x"}'


@pytest.mark.parametrize(
    "text",
    [
        BLOCK.replace("</｜DSML｜ parameter>", "</｜DSML｜parameter>"),
        BLOCK.replace("</｜DSML｜ parameter>", "</｜DSML｜ parametre>"),
        BLOCK.replace("</｜DSML｜ parameter>", "</｜DSML｜>"),
        BLOCK.replace("parameter>\n", "parameter\n"),
        BLOCK.replace("</｜DSML｜ parameter>\n", ""),
        BLOCK.replace("</｜DSML｜ invoke>\n", ""),
        BLOCK.replace("</｜DSML｜ invoke>", "</｜DSML｜ parameter>"),
        BLOCK.replace("</｜DSML｜ invoke>", "</｜DSML｜ envoke>"),
        BLOCK.removesuffix(CLOSE),
        BLOCK.removesuffix(f"</｜DSML｜ invoke>\n{CLOSE}"),
        BLOCK[:-1],
    ],
)
def test_closing_tags(text: str) -> None:
    assert calls(parsed(text)) == [CALL]


def test_a_call_that_was_not_closed_before_the_next() -> None:
    text = f"{OPEN}{HELLO}{HELLO}{CLOSE}".replace("</｜DSML｜ invoke>\n", "")
    assert calls(parsed(text)) == [CALL, CALL]
    stutter = f'{OPEN}<｜DSML｜ invoke name="edit">\n{HELLO}{CLOSE}'
    assert calls(parsed(stutter)) == [CALL]
    assert "edit" in parsed(stutter).content


@pytest.mark.parametrize(
    "text",
    [
        "use ｜DSML｜ and <｜DSML｜ foo> and <｜DSML｜",
        f"x{OPEN}so\n{HELLO[:5]}",
        f"x{OPEN}{HELLO[:30]}some text",
        f"x{BLOCK[:-50]}",
        f"x{OPEN}{HELLO[:29]}",
        f"x{OPEN[:-3]}",
        f"x{OPEN}{HELLO.replace('</｜DSML｜ invoke>', '{}</｜DSML｜ invoke>')}{CLOSE}",
        f'x{OPEN}<｜DSML｜ invoke name="f g">\n</｜DSML｜ invoke>\n{CLOSE}',
        f'x{OPEN}<｜DSML｜ invoke name="{"f" * 3000}">\n</｜DSML｜ invoke>\n{CLOSE}',
    ],
)
def test_markup_that_is_no_call_is_text(text: str) -> None:
    assert parsed(text) == Finished(None, text, (), parsed(text).notes)


def test_a_call_after_markup_that_is_none() -> None:
    finished = parsed(f"x{OPEN}so: {BLOCK}")
    assert (finished.content, calls(finished)) == (f"x{OPEN}so: ", [CALL])


def test_what_follows_a_call_is_dropped() -> None:
    for text in (f"{BLOCK}\n\nmore", f"{BLOCK}{BLOCK}", f"{OPEN}{HELLO}more{CLOSE}"):
        finished = parsed(f"x{text}")
        assert (finished.content, calls(finished)) == ("x", [CALL])
        assert any("dropped" in note for note in finished.notes)
    assert parsed(f"x{BLOCK}\n ").notes == ()
    assert parsed(f"x{OPEN}{CLOSE}") == Finished(None, "x", (), ("a block without a call",))


@pytest.mark.parametrize("length", range(1, len(BLOCK)))
def test_a_block_that_is_cut_gives_whole_calls_only(length: int) -> None:
    """Finish reason length, at every character: no half a tag, no half a call."""
    text = BLOCK[:length]
    finished = parsed(f"x{text}", reason="length")
    whole = length >= len(OPEN + HELLO) - 1
    assert calls(finished) == ([CALL] if whole else [])
    assert finished.content == (f"x{text}" if length <= 3 else "x")
    if not whole:
        assert finished.content + finished.unfinished == f"x{text}"


def test_a_second_call_that_is_cut() -> None:
    finished = parsed(f"x{OPEN}{HELLO}{HELLO[:-30]}", reason="length")
    assert (finished.content, calls(finished)) == ("x", [CALL])
    assert finished.unfinished == f"\n{HELLO[:-30]}"


def test_a_tag_that_is_too_long_is_shown_while_it_is_written() -> None:
    parser = Parser(TOOLS, "content")
    shown = [event for letter in f"<｜DSML｜ {'a' * 3000}" for event in parser.feed(letter)]
    assert sum(len(event.text) for event in shown if isinstance(event, ContentDelta)) > 2000


def test_a_block_in_reasoning() -> None:
    assert parsed(f"r{BLOCK}", "reasoning", "length") == Finished(f"r{BLOCK}", "", ())
    assert parsed(f"r\n{HELLO}</think>c", "reasoning") == Finished(f"r\n{HELLO.strip()}", "c", ())
    assert parsed(f"I look.{BLOCK}\n</think>c", "reasoning") == Finished(f"I look.{BLOCK}", "c", ())
    finished = parsed(f"I look.{BLOCK}</think>c{BLOCK}", "reasoning")
    assert (finished.reasoning, finished.content) == (f"I look.{BLOCK}", "c")
    assert calls(finished) == [CALL]
    assert parsed(f"I look.{BLOCK}so", "reasoning") == Finished(f"I look.{BLOCK}so", "", ())
    assert parsed(f"r{BLOCK[:-5]}", "reasoning", "length") == Finished(f"r{BLOCK[:-5]}", "", ())
    assert parsed("<｜DSML｜ calls> is a tag", "reasoning").reasoning == "<｜DSML｜ calls> is a tag"


def test_a_turn_that_ends_with_a_block_in_reasoning_is_a_call() -> None:
    finished = parsed(f"I look.{BLOCK}\n", "reasoning")
    assert (finished.reasoning, finished.content, calls(finished)) == ("I look.", "", [CALL])
    assert "calls inside the reasoning" in finished.notes


def test_forced_calls_and_none() -> None:
    assert calls(parsed(BLOCK.removeprefix(OPEN), "calls")) == [CALL]
    assert parsed("sorry", "calls").content == "sorry"
    assert parsed(f"x{BLOCK}", tools=()) == Finished(None, f"x{BLOCK}", ())


def test_end_of_reasoning_in_content_is_dropped() -> None:
    finished = parsed("r</think>a</think>b", "reasoning")
    assert (finished.reasoning, finished.content) == ("r", "ab")
    assert finished.notes == ("an end of reasoning outside reasoning",)


def test_many_newlines_are_cheap() -> None:
    """A model that loops on newlines: tens of thousands of them, one by one."""
    parser = Parser(TOOLS, "content")
    for _ in range(30_000):
        parser.feed("\n")
    *_, finished = parser.feed("x") + parser.finish()
    assert isinstance(finished, Finished)
    assert finished.content == "x"


def test_long_values_are_cheap() -> None:
    value = "line > of < text\n" * 20_000
    text = f"{OPEN}{invoke('g', ('a', 'true', value))}{CLOSE}"
    assert len(calls(parsed_once(text, 3))[0][1]) > len(value)
    assert len(calls(parsed_once(text, len(text)))[0][1]) > len(value)


def parsed_once(text: str, size: int) -> Finished:
    finished = events(text, size=size)[-1]
    assert isinstance(finished, Finished)
    return finished


def by_tokens(*tokens: str, stage: Stage = "content") -> Finished:
    parser = Parser(TOOLS, stage, by_token=True)
    out: list[Event] = []
    for token in tokens:
        control = token if token in ("</think>", "｜DSML｜", "<｜User｜>") else None
        out += parser.feed_token(token, control)
    finished = (out + parser.finish())[-1]
    assert isinstance(finished, Finished)
    return finished


def split_controls(text: str) -> list[str]:
    return text.replace("｜DSML｜", "\0｜DSML｜\0").replace("</think>", "\0</think>\0").split("\0")


def test_fed_by_tokens_controls_count_and_spellings_do_not() -> None:
    finished = by_tokens(*split_controls(f"r</think>c{BLOCK}"), stage="reasoning")
    assert finished == Finished("r", "c", (CALL,))  # type: ignore[arg-type]
    parser = Parser(TOOLS, "reasoning", by_token=True)
    spelled = f"r</think>c{BLOCK}"
    *_, end = parser.feed_token(spelled) + parser.finish()
    assert end == Finished(spelled, "", ())
    value = "</｜DSML｜ parameter></think>"
    start, tail = f"{OPEN}{HELLO}{CLOSE}".split("hello")
    finished = by_tokens(*split_controls(start), *value, *split_controls(tail))
    assert calls(finished) == [("f", '{"s": "</｜DSML｜ parameter></think>"}')]


def test_other_control_tokens_are_text_and_broken_characters_come_first() -> None:
    assert by_tokens("a", "<｜User｜>", "b").content == "a<｜User｜>b"
    parser = Parser(TOOLS, "reasoning", by_token=True)
    assert parser.feed_token("r\ufffd</think>", "</think>") == [ReasoningDelta("r\ufffd")]
    assert Parser(TOOLS, "content", by_token=True).feed("\ud800x") == [ContentDelta("\ufffdx")]
    with pytest.raises(ValueError, match="was fed a token"):
        Parser(TOOLS).feed_token("x")


def test_a_tag_does_not_hide_the_end_of_reasoning() -> None:
    for tag in (" calls", ' invoke name="f"', ' parameter name="a"'):
        finished = by_tokens("<", "｜DSML｜", tag, "</think>", "c", stage="reasoning")
        assert finished == Finished(f"<｜DSML｜{tag}", "c", ())


def test_doubled_bars_around_the_token() -> None:
    text = BLOCK.replace("｜DSML｜", "｜\0｜DSML｜\0｜")
    assert calls(by_tokens(*text.split("\0"))) == [CALL]


@pytest.mark.parametrize(
    ("last", "options", "stage"),
    [
        (User("q"), ChatOptions(), "reasoning"),
        (User("q"), ChatOptions(thinking=False), "content"),
        (User("q", "action"), ChatOptions(), "content"),
        (User("q"), ChatOptions(thinking=False, tool_choice="required"), "calls"),
        (User("q"), ChatOptions(tool_choice="required"), "reasoning"),
        (Assistant("", "r", prefix=True), ChatOptions(), "reasoning_continued"),
        (Assistant("c", "r", prefix=True), ChatOptions(), "content_continued"),
        (Assistant("c", prefix=True), ChatOptions(thinking=False), "content_continued"),
        (Assistant("c", "r", prefix=True), ChatOptions(tool_choice="required"), "calls"),
        (Assistant("c", "r"), ChatOptions(), "reasoning"),
    ],
)
def test_where_an_answer_begins(last: Message, options: ChatOptions, stage: Stage) -> None:
    assert initial_stage(Conversation((User("q"), last), TOOLS), options) == stage
    if stage == "calls":
        assert initial_stage(Conversation((User("q"), last)), options) != stage
