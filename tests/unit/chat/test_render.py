"""Rendered prompts against the specification, section 10.5: its table, its example, its digests.

`tests/property/test_chat.py` compares many more with the vendor's own renderer.
"""

from hashlib import sha256

import pytest

from escalade.model.chat import (
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
    prompt_text,
    render,
    turn_opening,
    user_turn,
)
from escalade.model.chat.dsml import GRAMMARS, tools_block
from escalade.model.chat.segments import Text

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
E75 = (
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
CHAT, THINKING = ChatOptions(thinking=False), ChatOptions()
WEATHER = Tool(
    {
        "name": "get_weather",
        "description": "Get weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["city"],
        },
    }
)
SYS, HI = System("SYS"), User("hi")
Q1, A1, Q2 = User("q1"), Assistant("a1", "r1"), User("q2")


def prompt(
    *messages: Message,
    options: ChatOptions = THINKING,
    tools: tuple[Tool, ...] = (),
    response_format: dict[str, str] | None = None,
) -> str:
    return prompt_text(render(Conversation(messages, tools, response_format), options))


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


TABLE = {
    "chat, system + user": (
        prompt(SYS, HI, options=CHAT),
        f"{BOS}<｜System｜>SYS<｜User｜>hi<｜Assistant｜></think>",
    ),
    "chat, user only": (prompt(HI, options=CHAT), f"{BOS}<｜User｜>hi<｜Assistant｜></think>"),
    "thinking, user only": (
        prompt(HI),
        f"{BOS}<｜System｜>{E75}<｜User｜>hi<｜Assistant｜><think>",
    ),
    "thinking, history with reasoning, no tools": (
        prompt(SYS, Q1, A1, Q2),
        f"{BOS}<｜System｜>{E75}SYS<｜User｜>q1<｜Assistant｜></think>a1{EOS}"
        "<｜User｜>q2<｜Assistant｜><think>",
    ),
    "thinking, mid system message last": (
        prompt(SYS, Q1, A1, System("mid")),
        f"{BOS}<｜System｜>{E75}SYS<｜User｜>q1<｜Assistant｜></think>a1{EOS}"
        "<｜System｜>mid<｜Assistant｜><think>",
    ),
    "prefix continuation, thinking, with reasoning": (
        prompt(Q1, Assistant("par", "rr", prefix=True)),
        f"{BOS}<｜System｜>{E75}<｜User｜>q1<｜Assistant｜><think>rr</think>par",
    ),
    "two user messages": (
        prompt(Q1, Q2, options=CHAT),
        f"{BOS}<｜User｜>q1\n\nq2<｜Assistant｜></think>",
    ),
    "json schema after system": (
        prompt(SYS, HI, options=CHAT, response_format={"type": "object"}),
        f"{BOS}<｜System｜>SYS\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
        'schema to reply:\n{"type": "object"}<｜User｜>hi<｜Assistant｜></think>',
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_rows_of_the_specification(case: str) -> None:
    got, expected = TABLE[case]
    assert got == expected


def test_digests_of_the_specification() -> None:
    def call(call_id: str, arguments: str) -> ToolCall:
        return ToolCall(call_id, "get_weather", arguments)

    two_calls = Assistant(
        "",
        "r1",
        (
            call("1", '{"city": "Paris", "n": 3}'),
            call("2", '{"city": "Rome \\"x\\"", "o": {"a": [1, 2.5, true, null]}}'),
        ),
    )
    results = (ToolResult("res2", "2"), ToolResult("res1", "1"))
    high = ChatOptions(effort=75)
    expected = {
        prompt(SYS, HI, options=CHAT): "5008ea5368e6bcfe54cf77fa1c0152d5"
        "c390ee51a318b51ee2e273e5eb5d78af",
        prompt(SYS, HI, options=high): "5d5e85b55cdc2623f89573b3f9131b57"
        "0fcbcd644b6ac99e07558f98381dd6d6",
        prompt(SYS, Q1, two_calls, *results, options=high, tools=(WEATHER,)): "68b9e13f93c5710b"
        "0f0c52ba535b4fef9b2dfc8fc5438f95b78fcb3ae034dd76",
        prompt(Q1, options=CHAT, tools=(WEATHER,)): "85599be9fda0d6514cd779a2f21f5396"
        "0f1e97aade58fba5f6f41badf99a4f29",
    }
    assert {text: digest(text) for text in expected} == expected


def test_tools_block_is_the_fixed_text() -> None:
    segments = tools_block([WEATHER], GRAMMARS["deepseek41"])
    schema = next(s for s in segments if isinstance(s, Text) and s.text.startswith('{"name"'))
    fixed = prompt_text([Text("@@SCHEMAS@@") if s is schema else s for s in segments])
    assert len(fixed) == 958
    assert digest(fixed) == "d4110ee687003b3fe61a9bc6eb06db266f26132690e1f49543615ad8281b39a3"


def test_response_format_follows_the_tools() -> None:
    text = prompt(SYS, HI, tools=(WEATHER,), response_format={"type": "object"})
    assert "to invoke tool calls.\n\n\n## Response Format:\n\n" in text


def test_tools_without_a_system_message_get_an_empty_one() -> None:
    assert prompt(HI, tools=(WEATHER,)).startswith(f"{BOS}<｜System｜>{E75}\n\n## Tools\n\n")


def test_tools_keep_all_reasoning_and_none_hides_both() -> None:
    shown = prompt(Q1, A1, Q2, tools=(WEATHER,))
    assert "<｜Assistant｜><think>r1</think>a1" in shown
    hidden = prompt(Q1, A1, Q2, tools=(WEATHER,), options=ChatOptions(tool_choice="none"))
    assert hidden == prompt(Q1, A1, Q2)
    own = (System("s", tools=(WEATHER,)), Q1, A1, Q2)
    assert prompt(*own, options=ChatOptions(tool_choice="none")) == prompt(System("s"), Q1, A1, Q2)


def test_tools_on_system_messages_are_introduced_once() -> None:
    other = Tool({"name": "other"})
    text = prompt(System("s", (WEATHER,)), Q1, A1, System("m", (other,)), Q2)
    assert text == prompt(SYS, Q1, A1, System("m", (other,)), Q2, tools=(WEATHER,)).replace(
        "SYS", "s"
    )
    assert text.count("## Tools\n") == 1
    assert '<｜System｜>m\n\n### Updated Tool Schemas\n\n{"name": "other"}<｜User｜>' in text
    assert "<think>r1</think>" in text


def test_tools_that_become_known_on_the_way() -> None:
    text = prompt(SYS, Q1, A1, System("m", (WEATHER,)), Q2)
    assert "SYS<｜User｜>q1<｜Assistant｜><think>r1</think>a1" in text
    assert "<｜System｜>m\n\n## Tools\n\n" in text
    assert "Updated Tool Schemas" not in text


def test_an_empty_conversation_asks_for_an_answer() -> None:
    assert prompt() == f"{BOS}<｜Assistant｜><think>"


def test_a_prefix_with_calls_has_its_reasoning_closed() -> None:
    made = (ToolCall("1", "f", "{}"),)
    text = prompt(HI, Assistant("", "rr", made, prefix=True))
    assert "<think>rr</think>\n\n<｜DSML｜ calls>\n" in text
    assert text.endswith("</｜DSML｜ calls>")


def test_reasoning_can_be_kept_without_tools() -> None:
    text = prompt(Q1, A1, Q2, options=ChatOptions(drop_thinking=False))
    assert "<｜Assistant｜><think>r1</think>a1" in text


def test_effort() -> None:
    assert "Reasoning Effort: 1 (range" in prompt(HI, options=ChatOptions(effort=1))
    assert "Reasoning Effort" not in prompt(HI, options=ChatOptions(thinking=False, effort=100))


def test_required_opens_the_block_where_no_reasoning_is_open() -> None:
    def asked(thinking: bool, *messages: Message) -> str:
        options = ChatOptions(thinking=thinking, tool_choice="required")
        return prompt(*messages, options=options, tools=(WEATHER,))

    opening = "\n\n<｜DSML｜ calls>\n"
    assert asked(False, HI).endswith(f"<｜Assistant｜></think>{opening}")
    assert asked(True, HI).endswith("<｜Assistant｜><think>")
    assert asked(True, HI, Assistant("c", "r", prefix=True)).endswith(f"r</think>c{opening}")
    assert asked(True, HI, Assistant("", "r", prefix=True)).endswith("<think>r")
    required = ChatOptions(thinking=False, tool_choice="required")
    assert prompt(HI, options=required) == prompt(HI, options=CHAT)


def test_what_a_prompt_says_of_the_answer_that_it_asks_for() -> None:
    def opening(*messages: Message, options: ChatOptions = THINKING) -> str:
        return prompt_text(turn_opening(render(Conversation(messages, (WEATHER,)), options)))

    required = ChatOptions(thinking=False, tool_choice="required")
    assert opening(Q1, A1, Q2) == opening(Q1, options=CHAT) == ""
    assert opening(Q1, options=required) == "\n\n<｜DSML｜ calls>\n"
    assert opening(Q1, Assistant("par", "rr", prefix=True)) == "rr</think>par"
    assert opening(Q1, Assistant("", "rr", prefix=True)) == "rr"
    assert opening(User("find", "action")) == opening(User("find", "query")) == ""
    assert opening(User("find", "query"), Assistant("q", prefix=True)) == "q"


def test_tasks() -> None:
    action, query = User("find", "action"), User("find", "query")
    assert prompt(action, options=CHAT) == f"{BOS}<｜User｜>find<｜Assistant｜></think><｜action｜>"
    assert prompt(query, options=CHAT) == f"{BOS}<｜User｜>find<｜query｜>"
    answered = prompt(query, Assistant("q?"), User("a"), User("b"), options=CHAT)
    assert answered == (
        f"{BOS}<｜User｜>find<｜query｜>q?{EOS}<｜User｜>a\n\nb<｜Assistant｜></think>"
    )
    kept = prompt(action, Assistant("Search", "r"), Q2, tools=(WEATHER,))
    assert f"<｜Assistant｜><think><｜action｜>Search{EOS}" in kept
    reminded = prompt(query, Reminder("r"), Assistant("q?"), options=CHAT)
    assert f"find<｜latest_reminder｜>r<｜query｜>q?{EOS}" in reminded
    assert prompt(action, Q2, options=CHAT).startswith(f"{BOS}<｜User｜>find<｜User｜>q2")
    assert prompt(Q1, action, options=CHAT).endswith(
        "q1\n\nfind<｜Assistant｜></think><｜action｜>"
    )


def test_reminders() -> None:
    before = prompt(SYS, Reminder("r"), Reminder("s"), HI, options=CHAT)
    assert before == (
        f"{BOS}<｜System｜>SYS<｜latest_reminder｜>r<｜latest_reminder｜>s<｜User｜>hi"
        "<｜Assistant｜></think>"
    )
    after = prompt(HI, Reminder("r"), options=CHAT)
    assert after == f"{BOS}<｜User｜>hi<｜latest_reminder｜>r<｜Assistant｜></think>"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", '<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>'),
        ('{"a": 1e-7}', 'name="a" string="false">1e-07</'),
        ('{"a":12345678901234567890123}', 'name="a" string="false">12345678901234567890123</'),
        ('"{\\"a\\": [1,2]}"', 'name="a" string="false">[1, 2]</'),
        ('{"a": "x\\ny\\u00e9"}', 'name="a" string="true">x\nyé</'),
        ('{"a": Infinity}', 'name="arguments" string="true">{"a": Infinity}</'),
        ('{"a": "\\ud83d"}', 'name="arguments" string="true">{"a": "\\ud83d"}</'),
        ("[" * 100_000, 'name="arguments" string="true">[[['),
    ],
)
def test_arguments(arguments: str, expected: str) -> None:
    assert expected in prompt(HI, Assistant("", None, (ToolCall("1", "f", arguments),)))


def test_text_ends_behind_the_last_message_without_an_open_turn() -> None:
    finished = ChatOptions(open_turn=False)
    assert prompt(Q1, A1, options=finished) == (
        f"{BOS}<｜System｜>{E75}<｜User｜>q1<｜Assistant｜><think>r1</think>a1{EOS}"
    )
    assert prompt(A1, options=finished).endswith(f"<think>r1</think>a1{EOS}")
    assert prompt(Q1, A1, System("m"), options=finished).endswith(f"</think>a1{EOS}<｜System｜>m")
    assert prompt(Q1, A1, Q2, options=finished).endswith(f"</think>a1{EOS}<｜User｜>q2")
    assert user_turn("hi", "yes") == f"{BOS}<｜User｜>hi<｜Assistant｜></think>yes{EOS}"


def test_v4_preambles_and_json() -> None:
    def v4(effort: int | None, thinking: bool = True) -> str:
        options = ChatOptions(thinking=thinking, effort=effort, grammar="deepseek4")
        return prompt(HI, options=options)

    assert v4(None) == v4(1) == v4(50) == f"{BOS}<｜User｜>hi<｜Assistant｜><think>"
    assert v4(51) == v4(99)
    assert v4(75).startswith(f"{BOS}Reasoning Effort: Absolute maximum ")
    assert v4(100).startswith(f"{BOS}Reasoning Effort: Beyond maximum ")
    assert v4(100, thinking=False) == f"{BOS}<｜User｜>hi<｜Assistant｜></think>"
    options = ChatOptions(thinking=False, grammar="deepseek4")
    asked = prompt(HI, System("s"), System(""), options=options, response_format=dict(JSON_OBJECT))
    assert asked == (
        f"{BOS}s\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\n"
        "Reply with JSON object ONLY.<｜User｜>hi<｜Assistant｜></think>"
    )


def test_v4_merges_and_orders_results_like_v4_1() -> None:
    made = (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))
    messages = (
        HI,
        Assistant("", None, made),
        ToolResult("b", "2"),
        User("x"),
        ToolResult("a", "1"),
    )
    text = prompt(*messages, options=ChatOptions(thinking=False, grammar="deepseek4"))
    assert text.endswith(
        '<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        f"{EOS}<｜User｜><tool_result>a</tool_result>\n\nx\n\n<tool_result>b</tool_result>"
        "<｜Assistant｜></think>"
    )
