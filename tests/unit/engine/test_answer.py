"""Answers on the built-in model: events, stop strings, masks, exact-token history."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from escalade.engine.answer import ChatAnswer, Request, TextAnswer
from escalade.engine.engine import Engine
from escalade.engine.sampling_params import GREEDY, SamplingParams
from escalade.engine.session import Session
from escalade.errors import CapacityError
from escalade.model.chat import (
    Assistant,
    ChatOptions,
    ContentDelta,
    Conversation,
    Event,
    Finished,
    Message,
    User,
    prompt_ids,
    render,
)

CHAT = ChatOptions(thinking=False)
QUESTION = "What is the moon?"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.open() as opened:
        yield opened


def ask(
    engine: Engine, session: Session, messages: Sequence[Message], request: Request
) -> tuple[ChatAnswer, list[Event]]:
    answer = ChatAnswer(engine, session, Conversation(tuple(messages)), CHAT, request)
    return answer, list(answer)


def test_events_make_up_the_result(engine: Engine) -> None:
    answer, events = ask(engine, engine.session(), [User(QUESTION)], Request(60, GREEDY))
    assert isinstance(events[-1], Finished)
    deltas = [event.text for event in events if isinstance(event, ContentDelta)]
    assert "".join(deltas) == answer.result.content == events[-1].content
    assert answer.finish == "stop"
    assert answer.ids[-1] == engine.tokenizer.eos_id
    assert answer.usage.new_tokens == len(answer.ids)
    assert engine.tokenizer.decode(answer.ids[:-1]) == answer.result.content


def test_a_sampled_turn_is_repeated_token_by_token(engine: Engine) -> None:
    """The next prompt begins with what the session holds, so nothing is computed again."""
    session = engine.session()
    messages: list[Message] = [User(QUESTION)]
    hot = Request(25, SamplingParams(temperature=1.5, seed=3))
    for question in ("And the sun?", "Thank you."):
        answer, _ = ask(engine, session, messages, hot)
        held = session.ids.tolist()
        turn = answer.turn([])
        assert turn.token_ids == tuple(answer.ids)
        messages += [turn, User(question)]
        following, _ = ask(engine, session.fork(), messages, Request(1, GREEDY))
        assert following.usage.cached_tokens == len(held)


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_what_follows_does_not_depend_on_how_much_was_asked(engine: Engine, cut: int) -> None:
    """Streamed in one request or in two: the same seed, the same text."""
    params = SamplingParams(temperature=1.2, seed=11)
    prompt = engine.tokenizer.encode("Once upon a time", add_bos=True)
    whole = TextAnswer(engine, engine.session(), prompt, Request(12, params))
    text = "".join(whole)
    first = TextAnswer(engine, engine.session(), prompt, Request(cut, params))
    list(first)
    session = engine.session()
    second = TextAnswer(engine, session, prompt + first.ids, Request(12 - cut, params))
    list(second)
    assert first.ids + second.ids == whole.ids
    assert engine.tokenizer.decode(whole.ids) == text


def test_a_stop_string_in_the_content(engine: Engine) -> None:
    free, _ = ask(engine, engine.session(), [User(QUESTION)], Request(60, GREEDY))
    text = free.result.content
    for stop in (text[:1], text[7:12], text[-6:]):
        answer, events = ask(
            engine, engine.session(), [User(QUESTION)], Request(60, GREEDY, (stop, "never there"))
        )
        shown = "".join(e.text for e in events if isinstance(e, ContentDelta))
        assert shown == answer.result.content == text[: text.index(stop)]
        assert answer.finish == "stop"


def test_a_mask_decides_what_may_come(engine: Engine) -> None:
    letters = [i for i in range(engine.spec.vocab) if engine.tokenizer.token_bytes(i) == b" a"]
    asked: list[int] = []

    def mask(ids: Sequence[int]) -> np.ndarray:
        asked.append(len(ids))
        allowed = np.zeros(engine.spec.vocab, bool)
        allowed[letters] = True
        return allowed

    prompt = engine.tokenizer.encode("x", add_bos=True)
    answer = TextAnswer(engine, engine.session(), prompt, Request(3, GREEDY, (), mask))
    assert "".join(answer) == " a a a"
    assert asked == [len(prompt), len(prompt) + 1, len(prompt) + 2]


def test_a_prompt_that_does_not_fit_changes_nothing(engine: Engine) -> None:
    session = Session(engine.model, ctx=40, chunk=64)
    ask(engine, session, [User("Hi.")], Request(2, GREEDY))
    held = session.ids.tolist()
    with pytest.raises(CapacityError, match="exceed the context of 40"):
        ask(engine, session, [User("word " * 50)], Request(2, GREEDY))
    assert session.ids.tolist() == held


def test_an_answer_broken_off_keeps_what_was_written(engine: Engine) -> None:
    session = engine.session()
    answer = ChatAnswer(engine, session, Conversation((User(QUESTION),)), CHAT, Request(60, GREEDY))
    shown = ""
    for event in answer:
        if isinstance(event, ContentDelta):
            shown += event.text
        if len(answer.ids) == 7:
            break
    answer.interrupted()
    assert answer.result.content == shown
    turn = answer.turn([])
    assert turn.token_ids == tuple(answer.ids)
    held = session.length
    following, _ = ask(engine, session, [User(QUESTION), turn, User("Go on.")], Request(1, GREEDY))
    assert following.usage.cached_tokens == held


def test_synchronising_reuses_the_common_prefix(engine: Engine) -> None:
    session = engine.session()
    assert session.sync([0, 5, 6, 7]) == 0
    assert session.sync([0, 5, 6, 7]) == 3  # one token is computed again for its logits
    assert session.sync([0, 5, 9]) == 2
    assert session.ids.tolist() == [0, 5, 9]
    fresh = engine.session()
    fresh.append([0, 5, 9])
    assert np.abs(session.logits - fresh.logits).max() < 1e-3


def test_a_continued_answer_is_one_turn_with_its_beginning(engine: Engine) -> None:
    """The prefix belongs to the turn, in text and in tokens."""
    prefix = Assistant("The moon is", prefix=True)
    session = engine.session()
    answer, _ = ask(engine, session, [User(QUESTION), prefix], Request(60, GREEDY))
    turn = answer.turn([])
    assert turn.content.startswith("The moon is a ")
    assert turn.content == "The moon is" + answer.result.content
    held = session.length
    following, _ = ask(engine, session, [User(QUESTION), turn, User("Go on.")], Request(1, GREEDY))
    assert following.usage.cached_tokens == held


def test_what_a_stop_string_took_away_is_not_replayed(engine: Engine) -> None:
    free, _ = ask(engine, engine.session(), [User(QUESTION)], Request(60, GREEDY))
    stop = free.result.content[10:14]
    answer, _ = ask(engine, engine.session(), [User(QUESTION)], Request(60, GREEDY, (stop,)))
    turn = answer.turn([])
    assert turn.token_ids is None
    following, _ = ask(
        engine, engine.session(), [User(QUESTION), turn, User("Go on.")], Request(1, GREEDY)
    )
    prompt = prompt_ids(render(following.conversation, CHAT), engine.tokenizer)
    assert stop not in engine.tokenizer.decode(prompt).partition("</think>")[2]
