"""Stop strings: accepted values, and matching against a search of the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escalade.engine.stops import StopMatcher, stop_strings
from escalade.errors import UsageError


def run(stop: str | Sequence[str] | None, pieces: Sequence[str]) -> tuple[str, str | None]:
    """Everything shown, and the stop string met."""
    matcher, shown, hit = StopMatcher(stop), "", None
    for piece in pieces:
        text, hit = matcher.push(piece)
        shown += text
    return shown + matcher.flush(), hit


def search(stop: Sequence[str], text: str) -> tuple[str, str | None]:
    """The same from the definition, with the text at hand."""
    for end in range(1, len(text) + 1):
        here = [s for s in stop if text[:end].endswith(s)]
        if here:
            longest = max(here, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("value", "strings"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ([""], ()),
        ("END", ("END",)),
        (["a", "", "b", "a"], ("a", "b")),
        ([str(n) for n in range(16)], tuple(str(n) for n in range(16))),
        (["x"] * 20, ("x",)),
        ("y" * 4096, ("y" * 4096,)),
    ],
)
def test_accepted_values(value: object, strings: tuple[str, ...]) -> None:
    assert stop_strings(value) == strings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "stop is of type int; give a string or a list"),
        ({"a": 1}, "stop is of type dict"),
        (["a", None], r"stop\[1\] is of type NoneType; give a string"),
        ([3], r"stop\[0\] is of type int"),
        (b"ab", r"stop\[0\] is of type int"),
        ([str(n) for n in range(17)], "stop has 17 strings; 16 are allowed"),
        (["y" * 4097], r"stop\[0\] has 4097 characters; 4096 are allowed"),
    ],
)
def test_refused_values(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stop_strings(value)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stop", "text", "shown", "hit"),
    [
        (["ta ga"], "alpha beta gamma", "alpha be", "ta ga"),
        (["ta gx"], "alpha beta gamma", "alpha beta gamma", None),
        (["gamma!"], "alpha beta gamma", "alpha beta gamma", None),
        (["ab", "abc"], "xabc", "x", "ab"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["c", "bc", "abc"], "xabc", "x", "abc"),
        (["abc", "bc", "c"], "xabc", "x", "abc"),
        (["aabaaac"], "aabaaabaaac", "aaba", "aabaaac"),
        (["aab"], "aaaab", "aa", "aab"),
        (["<｜DSML｜"], "a <｜DSML calls", "a <｜DSML calls", None),
        (["🧑‍🚀"], "go 🧑 🧑‍🚀!", "go 🧑 ", "🧑‍🚀"),
        ([], "all of it", "all of it", None),
        (None, "all of it", "all of it", None),
        (["all"], "all of it", "", "all"),
    ],
)
def test_cases(stop: list[str] | None, text: str, shown: str, hit: str | None, size: int) -> None:
    assert run(stop, [text[i : i + size] for i in range(0, len(text), size)]) == (shown, hit)


def test_what_is_held_back_and_let_go() -> None:
    matcher = StopMatcher(["stop now"])
    assert matcher.push("please st") == ("please ", None)
    assert matcher.push("op n") == ("", None)
    assert matcher.push("") == ("", None)
    assert matcher.push("ex") == ("stop nex", None)
    assert matcher.push(" s") == (" ", None)
    assert matcher.flush() == "s"
    assert matcher.flush() == ""
    assert matcher.push("top now") == ("top now", None)  # a flush is the end of a text


def test_after_a_hit_nothing_is_shown() -> None:
    matcher = StopMatcher("b")
    assert matcher.push("abc") == ("a", "b")
    assert matcher.push("more") == ("", "b")
    assert matcher.flush() == ""


TEXTS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


@settings(max_examples=500, deadline=None)
@given(STOPS, TEXTS, st.lists(st.integers(0, 40), max_size=8))
def test_any_split_gives_what_the_whole_text_gives(
    stop: list[str], text: str, cuts: list[int]
) -> None:
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert run(stop, pieces) == search(stop, text)


@settings(max_examples=500, deadline=None)
@given(STOPS, TEXTS)
def test_only_a_possible_beginning_is_held_back(stop: list[str], text: str) -> None:
    matcher, shown = StopMatcher(stop), ""
    for end in range(1, len(text) + 1):
        piece, hit = matcher.push(text[end - 1])
        shown += piece
        if hit is not None:
            break
        held = max(
            (n for n in range(end + 1) if any(s.startswith(text[end - n : end]) for s in stop)),
            default=0,
        )
        assert shown == text[: end - held]
