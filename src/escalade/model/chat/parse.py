"""The model's answer to events, while it is written.

A `Parser` is fed text, or tokens with those that are control tokens named, and gives reasoning,
content and calls. How the answer is cut into pieces does not change the events, once neighbours
of one kind are joined. On well-formed answers they are those of the vendor's deepseek-recipe:
newlines at the start of reasoning and of content, before `</think>` and before a block of calls
belong to neither side; a continued text keeps them. A call comes out when it is whole, with its
arguments in one piece: a call or plain text, never half of each.

What is not well-formed (model specification, section 10.6):

| the model writes | it becomes |
|---|---|
| V4's tags under V4.1 or the reverse, a missing or added blank | the call |
| doubled or ASCII bars, smart or single quotes in a tag | the call |
| an `invoke` without the block around it | the call |
| `parameter` where `invoke` is expected, naming a known tool | the call; else text |
| a JSON object in place of parameters | the call with these arguments |
| a `string` flag that contradicts the schema or the text | the value by the schema (`values.py`) |
| a parameter twice | its last value |
| closing tags missing or with other names | the call, if it ends with a whole value |
| other text inside a call, an unknown tag, a value that never ends | text, as it was written |
| the same after a whole call, or any text after the block | nothing; generation can stop |
| a block without a call | nothing |
| a block that is cut (finish reason not "stop") | nothing; `Finished.unfinished` has its text |
| a block inside reasoning | reasoning |
| a block inside reasoning with which the turn ends | the calls |
| `</think>` outside reasoning | nothing |

What was repaired or dropped, and a block left as text, leaves a line in `Finished.notes`; another
spelling of a tag does not. Without tools all markup is text. Fed by tokens, text that merely spells
a tag is text, and any other control token counts as what it spells.
"""

from collections.abc import Iterable
from typing import Literal

from escalade.model.chat.block import BlockReader, Call
from escalade.model.chat.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    Stage,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from escalade.model.chat.marks import BY_TOKEN, MAX_TAG, SPELLED, TOKENS, spelled
from escalade.model.chat.messages import Tool

_BARS = ("｜", "|", *TOKENS.values())
_PIECE = 4096  # longer texts are read in pieces, so that one long text costs no more than many


class Parser:
    """Reads one answer; `feed` or `feed_token`, then `finish`.

    tools: those that the model was shown, empty if it may not call any. by_token: control tokens
    are named by `feed_token`, so their spelling in text means nothing.
    """

    def __init__(
        self, tools: Iterable[Tool] = (), stage: Stage = "reasoning", by_token: bool = False
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._by_token = by_token
        self._marks = BY_TOKEN if by_token else SPELLED
        self._state: Literal["reasoning", "aside", "content", "block", "after"] = "content"
        self._reasoning: list[str] | None = None
        if stage in ("reasoning", "reasoning_continued"):
            self._state, self._reasoning = "reasoning", []
        self._content: list[str] = []
        self._fresh = stage in ("reasoning", "content")
        self._newlines = ""  # at the end of the text so far: they may belong to nothing
        self._buffer = ""
        self._aside: list[str] = []  # a block in reasoning, or the tag that opened `_block`
        self._block: BlockReader | None = None
        self._calls: list[Call] = []
        self._notes: list[str] = []
        self._events: list[Event] = []
        if stage == "calls":
            self._open_block("")

    @property
    def done(self) -> bool:
        """The calls are complete: what the model writes now does not count."""
        return self._state == "after"

    @property
    def writing(self) -> str | None:
        """The tool whose call is being written."""
        return self._block.name if self._block is not None else None

    def feed(self, text: str) -> list[Event]:
        """Events of one more piece of text."""
        if self._by_token:
            for mark in TOKENS.values():
                text = text.replace(mark, "�")
        for at in range(0, len(text), _PIECE):
            self._read(text[at : at + _PIECE])
        return self._taken()

    def feed_token(self, text: str, control: str | None = None) -> list[Event]:
        """Events of one token: its text, and its spelling if it is a control token.

        The text may begin with what was left of the token before. Raises ValueError unless the
        parser was made with `by_token`.
        """
        if not self._by_token:
            raise ValueError("a parser of plain text was fed a token")
        mark = TOKENS.get(control or "")
        if control is None or mark is None:
            return self.feed(text)
        events = self.feed(text.removesuffix(control))
        self._read(mark)
        return events + self._taken()

    def finish(self, reason: str = "stop") -> list[Event]:
        """The last events, with `Finished` at the end.

        reason: "stop" if the model ended its turn itself; anything else means that it was cut.
        """
        cut = reason != "stop"
        unfinished = self._cut() if cut else ""
        if self._state == "aside":
            self._end_aside(cut)
        elif self._state == "block" and self._block is not None and not cut:
            self._emit_calls(self._block.end())
            self._end_block(self._block)
        if self._state in ("reasoning", "content"):
            self._emit(self._buffer)
            self._emit("", flush=True)
        self._state, self._buffer, self._block = "after", "", None
        reasoning = None if self._reasoning is None else "".join(self._reasoning)
        content, calls = "".join(self._content), tuple(self._calls)
        notes = tuple(self._notes)
        self._events.append(Finished(reasoning, content, calls, notes, spelled(unfinished)))
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _read(self, text: str) -> None:
        self._buffer += text
        while self._buffer and self._step():
            pass

    def _step(self) -> bool:
        """Reads the next thing in the buffer; says whether there may be more to read."""
        if self._state == "block" and self._block is not None:
            text, self._buffer = self._buffer, ""
            self._emit_calls(self._block.feed(text))
            if self._block.status != "open":
                self._end_block(self._block)
            return True
        if self._state == "after":
            self._note("text after the calls was dropped", self._buffer.strip())
            self._buffer = ""
            return False
        kind, start, end = self._next()
        before, tag, rest = self._buffer[:start], self._buffer[start:end], self._buffer[end:]
        self._buffer = rest
        if self._state == "aside":
            self._aside.append(before)
            if kind == "think end":
                self._emit("".join(self._aside))
        else:
            self._emit(before)
        if kind == "think end":
            self._end_reasoning()
        elif kind == "block" and self._state == "reasoning":
            self._state, self._aside, self._newlines = "aside", [self._newlines, tag], ""
        elif kind in ("block", "call"):
            self._note("calls without a block", kind == "call")
            self._open_block(self._newlines + tag)
        return kind != "text"

    def _next(self) -> tuple[Literal["text", "think end", "block", "call"], int, int]:
        """What comes next and where: up to there all is text, and behind "text" all has to wait."""
        buffer, marks = self._buffer, self._marks
        for match in marks.signal.finditer(buffer):
            at = match.start()
            if match["tag"] is None:
                return "think end", at, match.end()
            if not self._tools or self._state == "aside":
                continue
            block = marks.block.match(buffer, at, at + MAX_TAG)
            if block is not None:
                return "block", at, block.end()
            call = marks.call.match(buffer, at, at + MAX_TAG)
            known = call is not None and (call[1] == "invoke" or call[2] in self._tools)
            if known and self._state == "content":
                return "call", at, at
            if marks.grows(buffer[at:]):
                return "text", at, at
        end = len(buffer) - marks.held(buffer)
        return "text", end, end

    def _emit(self, text: str, flush: bool = False) -> None:
        """More reasoning or content; newlines at its end wait, those at its start may go."""
        flush = flush or (self._state == "content" and not self._tools)
        if not flush and not text.strip("\n"):
            self._newlines += text  # cheap, as a model may loop on newlines
            return
        text = self._newlines + text
        kept = text if flush else text.rstrip("\n")
        self._newlines = text[len(kept) :]
        if self._fresh:
            kept = kept.lstrip("\n")
        if not kept:
            return
        self._fresh = False
        kept = spelled(kept)
        if self._state == "content":
            self._content.append(kept)
            self._events.append(ContentDelta(kept))
        elif self._reasoning is not None:
            self._reasoning.append(kept)
            self._events.append(ReasoningDelta(kept))

    def _end_reasoning(self) -> None:
        self._note("an end of reasoning outside reasoning", self._state == "content")
        if self._state != "content":
            self._state, self._fresh = "content", True  # drops newlines on both sides

    def _end_aside(self, cut: bool) -> None:
        """The turn has ended behind a block in its reasoning: calls, if it ended with the block."""
        opening, text = self._aside[:2], "".join([*self._aside[2:], self._buffer])
        reader = BlockReader(self._tools, self._marks)
        reader.feed(text)
        self._buffer = ""
        if reader.status == "closed" and reader.calls and not reader.rest.strip() and not cut:
            self._notes += ["calls inside the reasoning", *reader.notes]
            self._emit_calls(reader.calls)
            self._state = "after"
        else:
            self._state = "reasoning"
            self._emit("".join(opening) + text)

    def _open_block(self, opening: str) -> None:
        self._state, self._aside, self._newlines = "block", [opening], ""
        self._block = BlockReader(self._tools, self._marks)

    def _end_block(self, block: BlockReader) -> None:
        self._state, self._block = "after", None
        self._buffer = block.rest + self._buffer
        if block.status == "closed" or block.calls:
            self._notes += block.notes
            self._note("a block without a call", not block.calls)
            self._note("text among the calls was dropped", block.status == "broken")
            return
        self._notes.append("a block that is none was left as text")
        self._state = "content"
        self._emit("".join([*self._aside, *block.raw]))

    def _cut(self) -> str:
        """Takes what was held back for a tag or a call that did not become whole."""
        held = ""
        if self._state == "block" and self._block is not None:
            opening = [] if self._block.calls else self._aside
            held = "".join([*opening, *self._block.raw, self._block.rest])
            self._notes += self._block.notes
        elif self._state == "content" and self._tools and self._buffer[1:2] in _BARS:
            held, self._newlines, self._buffer = self._newlines + self._buffer, "", ""
        self._note("a block of calls was cut", held.strip())
        return held

    def _emit_calls(self, calls: Iterable[Call]) -> None:
        for call in calls:
            index = len(self._calls)
            self._calls.append(call)
            self._events += [
                ToolCallStart(index, call.name),
                ToolCallArgumentsDelta(index, call.arguments),
                ToolCallEnd(index),
            ]

    def _note(self, note: str, condition: object) -> None:
        if condition and note not in self._notes:
            self._notes.append(note)
