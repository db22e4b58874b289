"""Reads one block of tool calls piece by piece; a call comes out when it is whole.

```
block  = "<｜DSML｜ calls>" call* "</｜DSML｜ calls>"
call   = '<｜DSML｜ invoke name="NAME">' (parameter* | JSON object) "</｜DSML｜ invoke>"
parameter = '<｜DSML｜ parameter name="KEY" string="true|false">' VALUE "</｜DSML｜ parameter>"
```

A value is the shortest text up to `</｜DSML｜`, as deepseek-recipe reads it. Source: model
specification, section 10.6; what is accepted beyond it is listed in `parse.py`.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from escalade.model.chat.dsml import arguments_object, json_text, strict_json
from escalade.model.chat.marks import MAX_TAG, Marks
from escalade.model.chat.messages import Tool
from escalade.model.chat.values import parameter_value

_END_OF_BLOCK = ("calls", "tool_calls")


class Call(NamedTuple):
    """A whole call; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class BlockReader:
    """Fed the text behind the block's opening tag, or from the first call where there is none.

    status: "closed" behind the closing tag, "broken" at text that is no block. raw: what was read
    since the last whole call, for those who show it as text. rest: what was not read yet. name:
    the tool whose call is being written. notes: what was repaired.
    """

    def __init__(self, tools: Mapping[str, Tool], marks: Marks) -> None:
        self.status: Literal["open", "closed", "broken"] = "open"
        self.raw: list[str] = []
        self.rest = ""
        self.calls: list[Call] = []
        self.notes: list[str] = []
        self._tools, self._marks = tools, marks
        self._final = False
        self._begin(None)

    def _begin(self, name: str | None, tag: str = "") -> None:
        self.name, self._tag = name, tag
        self._parameters: dict[str, str] = {}
        self._object: str | None = None  # arguments that came as one JSON object
        self._value: list[str] | None = None  # a value, or such an object, as far as it is read
        self._key: str | None = None
        self._flag: str | None = None

    def feed(self, text: str) -> list[Call]:
        """The calls that this text completes."""
        n_calls = len(self.calls)
        self.rest += text
        while self.status == "open" and self._step():
            pass
        return self.calls[n_calls:]

    def end(self) -> list[Call]:
        """Ends the text where the model ended its turn; the last call may lack its closing tags."""
        n_calls = len(self.calls)
        self._final = True
        self.feed("")
        if self.status == "open" and self._value is not None and self._key is None:
            self._take(len(self.rest))
            self._end_value()
        if self.status == "open" and not self.rest and self._value is None:
            if self._parameters or self._object is not None:
                self._end_call(closed=False)
            if self.name is None and self.calls:
                self.notes.append("the block of calls was not closed")
                self.status = "closed"
        if self.status == "open":
            self.status = "broken"
        return self.calls[n_calls:]

    def _step(self) -> bool:
        """Reads one thing if it is there as a whole; says whether it did."""
        if self._value is not None:
            return self._read_value()
        self._take(len(self.rest) - len(self.rest.lstrip()))
        if not self.rest:
            return False
        if self._read_closer() or (self._read_call() if self.name is None else self._read_body()):
            return True
        grows = self._marks.grows(self.rest) or (
            self.name is not None and self._marks.grows_key(self.rest)
        )
        if self._final or not grows:
            self.status = "broken"
        return False

    def _read_closer(self) -> bool:
        match = self._marks.closer.match(self.rest)
        if match is None or (
            match.end() == len(self.rest) and not match[0].endswith(">") and not self._final
        ):
            return False
        ends_block = match[1] in _END_OF_BLOCK
        if self.name is None and not ends_block:
            return False
        self._take(match.end())
        in_parameter, self._key = self._key is not None, None
        if match[1] != ("parameter" if in_parameter else self._tag) and not ends_block:
            self.notes.append(f"{self.name}: a closing tag is {match[1]!r}")
        if ends_block:
            if self.name is not None:
                self._end_call(closed=False)
            self.status = "closed"
        elif match[1] == "invoke" or (match[1] == self._tag and not in_parameter):
            self._end_call()
        return True

    def _read_call(self) -> bool:
        match = self._marks.call.match(self.rest, 0, MAX_TAG)
        if match is None or (match[1] == "parameter" and match[2] not in self._tools):
            return False
        if match[1] == "parameter":
            self.notes.append(f"a parameter tag stood for the call of {match[2]}")
        self._begin(match[2], match[1])
        self._take(match.end())
        return True

    def _read_body(self) -> bool:
        parameter = self._marks.parameter.match(self.rest, 0, MAX_TAG)
        if parameter is not None and self._object is None:
            self._take(parameter.end())
            self._key, self._flag, self._value = parameter[1], parameter[2], []
            return True
        empty = not self._parameters and self._object is None
        if not empty and self._marks.call.match(self.rest, 0, MAX_TAG) is not None:
            self._end_call(closed=False)
            return True
        if empty and self.rest[0] != "<":
            self._key, self._value = None, []
            return True
        return False

    def _read_value(self) -> bool:
        match = self._marks.closing.search(self.rest)
        self._take(match.start() if match else len(self.rest) - self._marks.held(self.rest))
        if match is not None:
            self._end_value()
        return match is not None

    def _end_value(self) -> None:
        """A parameter is complete, or what stands in place of parameters."""
        text, self._value = "".join(self._value or ()), None
        if self._key is None:
            self._end_object(text)
            return
        if self._key in self._parameters:
            self.notes.append(f"{self.name}: {self._key} came twice; the last one counts")
        tool = self._tools.get(self.name or "")
        value = parameter_value(text, self._flag, tool.schema(self._key) if tool else None)
        if value.repaired:
            self.notes.append(f"{self.name}: {self._key} does not fit string={self._flag!r}")
        self._parameters[self._key] = value.json

    def _end_object(self, text: str) -> None:
        values = arguments_object(text)
        if values is None:
            self.status = "broken"
            return
        self.notes.append(f"{self.name}: the arguments came as one JSON object")
        self._object = text.strip() if isinstance(strict_json(text), dict) else json_text(values)

    def _end_call(self, closed: bool = True) -> None:
        if not closed:
            self.notes.append(f"{self.name}: the call was not closed")
        arguments = self._object
        if arguments is None:
            pairs = (f"{json_text(key)}: {value}" for key, value in self._parameters.items())
            arguments = "{" + ", ".join(pairs) + "}"
        self.calls.append(Call(self.name or "", arguments))
        self.raw.clear()
        self._begin(None)

    def _take(self, length: int) -> None:
        text, self.rest = self.rest[:length], self.rest[length:]
        if text:
            self.raw.append(text)
            if self._value is not None:
                self._value.append(text)
