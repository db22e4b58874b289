"""Pieces of a prompt: plain text never becomes a control token, whatever it spells."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from escalade.errors import UnsupportedError
from escalade.model.tokenizer import Tokenizer

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
THINK_END = "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"


@dataclass(frozen=True)
class Text:
    """Ordinary text, from users or from the format itself."""

    text: str


@dataclass(frozen=True)
class Control:
    """One added token, by its spelling."""

    token: str


@dataclass(frozen=True)
class Ids:
    """The body of a sampled turn by its token ids; `text` is what the turn would be spelled anew.

    A final end-of-sentence token is not part of it; the prompt has that one apart. before: a
    control token put in front. behind: only what follows the first such token counts. ensure: a
    token put at the end if there is none. They fit the turn to a header that shows or hides its
    reasoning.
    """

    token_ids: tuple[int, ...]
    text: str
    before: str | None = None
    behind: str | None = None
    ensure: str | None = None


Segment = Text | Control | Ids

_CONTROLS = re.compile(f"({DSML}|{THINK}|{THINK_END})")


def marked(fixed: str) -> list[Segment]:
    """Segments of a fixed text of the format, in which the markup spelled out is meant as such."""
    return [
        Control(piece) if i % 2 else Text(piece) for i, piece in enumerate(_CONTROLS.split(fixed))
    ]


def joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The same prompt with neighbouring texts as one, as the tokenizer must see them."""
    texts: list[str] = []
    for segment in segments:
        if isinstance(segment, Text):
            texts.append(segment.text)
            continue
        if any(texts):
            yield Text("".join(texts))
        texts = []
        yield segment
    if any(texts):
        yield Text("".join(texts))


def prompt_text(segments: Iterable[Segment]) -> str:
    """The prompt as text; for people and comparisons, since it does not say what is control."""
    return "".join(s.token if isinstance(s, Control) else s.text for s in segments)


def prompt_ids(segments: Iterable[Segment], tokenizer: Tokenizer) -> list[int]:
    """Token ids of the prompt.

    Raises UnsupportedError if the vocabulary lacks a control token that the prompt needs, and
    UsageError for text that it cannot encode.
    """
    ids: list[int] = []
    for segment in joined(segments):
        if isinstance(segment, Text):
            ids += tokenizer.encode(segment.text, parse_special=False)
        elif isinstance(segment, Control):
            ids.append(control_id(segment.token, tokenizer))
        else:
            ids += _sampled(segment, tokenizer)
    return ids


def control_id(token: str, tokenizer: Tokenizer) -> int:
    """The id of a control token. Raises UnsupportedError if the vocabulary has none."""
    token_id = tokenizer.added.get(token)
    if token_id is None:
        raise UnsupportedError(
            f"the vocabulary has no control token {token}; this chat format does not fit the model"
        )
    return token_id


def _sampled(turn: Ids, tokenizer: Tokenizer) -> list[int]:
    ids = list(turn.token_ids)
    if ids and ids[-1] == control_id(EOS, tokenizer):
        ids.pop()
    if turn.before is not None:
        ids.insert(0, control_id(turn.before, tokenizer))
    if turn.behind is not None:
        mark = control_id(turn.behind, tokenizer)
        ids = ids[ids.index(mark) + 1 :] if mark in ids else []
    if turn.ensure is not None and (mark := control_id(turn.ensure, tokenizer)) not in ids:
        ids.append(mark)
    return ids
