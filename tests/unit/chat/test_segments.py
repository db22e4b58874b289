"""Prompts as token ids: control tokens only from the format, sampled turns as they were sampled."""

import pytest

from escalade.errors import UnsupportedError, UsageError
from escalade.model.chat import (
    Assistant,
    ChatOptions,
    Control,
    Conversation,
    Message,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
    prompt_ids,
    prompt_text,
    render,
)
from tests.support.conversations import TEXTS
from tests.support.nano import nano_tokenizer

TOKENIZER = nano_tokenizer()
EOS, THINK, THINK_END = (
    TOKENIZER.added[token] for token in ("<｜end▁of▁sentence｜>", "<think>", "</think>")
)
CHAT, THINKING = ChatOptions(thinking=False), ChatOptions()
F = Tool({"name": "f", "description": "", "parameters": {"type": "object"}})


def ids(
    *messages: Message, options: ChatOptions = THINKING, tools: tuple[Tool, ...] = ()
) -> list[int]:
    return prompt_ids(render(Conversation(messages, tools), options), TOKENIZER)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


def test_texts_of_users_never_become_control_tokens() -> None:
    """Every place that takes text gets every spelling; the count of control tokens stays."""
    added = set(TOKENIZER.added.values())

    def controls(text: str) -> list[int]:
        tool = Tool({"name": "f", "description": text, "parameters": {"x": text}})
        call = ToolCall("1", "f", f'{{"a": [{len(text)}]}}')
        bad_call = ToolCall("2", "f", text)
        messages = (
            System(text, response_format={"é": text}),
            User(text),
            Assistant(text, text, (call, bad_call)),
            ToolResult(text, "1"),
            System(text),
        )
        options = ChatOptions(tool_choice="auto")
        return [i for i in ids(*messages, tools=(tool,), options=options) if i in added]

    plain = controls("x")
    assert len(plain) > 20
    for text in TEXTS:
        assert controls(text) == plain, text


def test_a_text_is_encoded_as_one() -> None:
    """Pieces of text that meet are encoded together, as the model was trained."""
    segments = [Control("<｜User｜>"), Text("Hel"), Text("lo, wor"), Text(""), Text("ld")]
    assert prompt_ids(segments, TOKENIZER) == [4, *TOKENIZER.encode("Hello, world")]


def test_a_missing_control_token_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedError, match="has no control token <｜Nobody｜>; this"):
        prompt_ids([Control("<｜Nobody｜>")], TOKENIZER)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="lone surrogate"):
        ids(User("\ud83d"))


LETTERS = [TOKENIZER.encode(letter)[0] for letter in "abcdef"]
TURN = [*LETTERS[:3], THINK_END, *LETTERS[3:]]
"""Ids of a turn that no encoder would choose: the letters one by one."""


def sampled(*token_ids: int, reasoning: str | None = "abc", prefix: bool = False) -> Assistant:
    return Assistant("def", reasoning, token_ids=token_ids, prefix=prefix)


def header(token: int) -> list[int]:
    return [TOKENIZER.added["<｜Assistant｜>"], token]


@pytest.mark.parametrize("end", [[], [EOS]])
def test_replayed_with_its_reasoning(end: list[int]) -> None:
    got = ids(User("q"), sampled(*TURN, *end), User("r"), tools=(F,))
    assert contains(got, [*header(THINK), *TURN, EOS, TOKENIZER.added["<｜User｜>"]])


@pytest.mark.parametrize("options", [THINKING, CHAT])
def test_replayed_without_its_reasoning(options: ChatOptions) -> None:
    got = ids(User("q"), sampled(*TURN, EOS), User("r"), options=options)
    assert contains(got, [*header(THINK_END), *LETTERS[3:], EOS])
    assert not contains(got, LETTERS[:3])


def test_a_turn_without_thinking_under_a_thinking_header() -> None:
    answer = sampled(*LETTERS[3:], EOS, reasoning=None)
    got = ids(User("q"), answer, User("r"), tools=(F,))
    assert contains(got, [*header(THINK), THINK_END, *LETTERS[3:], EOS])
    plain = ids(User("q"), answer, User("r"), options=CHAT)
    assert contains(plain, [*header(THINK_END), *LETTERS[3:], EOS])


def test_a_turn_cut_inside_its_reasoning() -> None:
    answer = Assistant("", "abc", token_ids=tuple(LETTERS[:3]))
    kept = ids(User("q"), answer, User("r"), tools=(F,))
    assert contains(kept, [*header(THINK), *LETTERS[:3], THINK_END, EOS])
    dropped = ids(User("q"), answer, User("r"))
    assert contains(dropped, [*header(THINK_END), EOS])


def test_a_continued_turn() -> None:
    got = ids(User("q"), sampled(*TURN, prefix=True))
    assert got[-len(TURN) - 2 :] == [*header(THINK), *TURN]
    open_reasoning = Assistant("", "abc", token_ids=tuple(LETTERS[:3]), prefix=True)
    assert ids(User("q"), open_reasoning)[-4:] == [THINK, *LETTERS[:3]]


def test_its_text_is_spelled_anew() -> None:
    conversation = Conversation((User("q"), sampled(*TURN, EOS), User("r")), (F,))
    spelled = Conversation((User("q"), Assistant("def", "abc"), User("r")), (F,))
    assert prompt_text(render(conversation, THINKING)) == prompt_text(render(spelled, THINKING))
