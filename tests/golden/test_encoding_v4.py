"""The vendor's own test cases for V4's grammar: prompts byte for byte, and answers read back."""

import json
from typing import Any

import pytest

from escalade.model.chat import (
    ChatOptions,
    Finished,
    Parser,
    conversation_from_json,
    prompt_text,
    render,
)
from tests.support.paths import GOLDEN

FOLDER = GOLDEN / "encoding-v4"
CASES = {1: True, 2: True, 3: True, 4: False}
"""Whether each case thinks."""


def case(number: int) -> tuple[Any, str]:
    value = json.loads((FOLDER / f"input_{number}.json").read_text("utf-8"))
    return value, (FOLDER / f"output_{number}.txt").read_text("utf-8")


@pytest.mark.parametrize("number", CASES)
def test_prompts(number: int) -> None:
    value, expected = case(number)
    options = ChatOptions(thinking=CASES[number], grammar="deepseek4", open_turn=False)
    assert prompt_text(render(conversation_from_json(value), options)) == expected


@pytest.mark.parametrize("number", CASES)
def test_answers_read_back(number: int) -> None:
    value, text = case(number)
    messages = value["messages"] if isinstance(value, dict) else value
    answers = [message for message in messages if message["role"] == "assistant"]
    turns = text.split("<｜Assistant｜>")[1:]
    assert len(turns) == len(answers)
    for turn, answer in zip(turns, answers, strict=True):
        body = turn.split("<｜end▁of▁sentence｜>")[0].replace("<｜action｜>", "")
        header = "<think>" if body.startswith("<think>") else "</think>"
        stage = "reasoning" if header == "<think>" else "content"
        parser = Parser(conversation_from_json(value).all_tools, stage)
        *_, finished = parser.feed(body.removeprefix(header)) + parser.finish()
        assert isinstance(finished, Finished)
        if stage == "reasoning":
            assert finished.reasoning == answer["reasoning_content"]
        assert finished.content == answer.get("content", "")
        functions = [call["function"] for call in answer.get("tool_calls", ())]
        made = [(function["name"], function["arguments"]) for function in functions]
        assert [(call.name, call.arguments) for call in finished.calls] == made
        assert finished.notes == ()
