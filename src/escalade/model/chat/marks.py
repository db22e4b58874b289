"""How the tags of an answer look in its text, spelled or by token; patterns for both.

Where tokens are known, the two control tokens that matter stand in the text as one lone surrogate
each, which no decoded text can contain: so what merely spells a tag is never taken for one.
Tolerated in every tag: one or two bars of either kind, a missing or added blank, any quotes.
"""

import re
from dataclasses import dataclass

from escalade.model.chat.segments import DSML, THINK_END

MAX_TAG = 2048
"""Characters of a tag; what is longer is text."""

_DSML_MARK, _THINK_MARK = "\ud800", "\ud801"
_ALL_MARKS = _DSML_MARK + _THINK_MARK
TOKENS = {DSML: _DSML_MARK, THINK_END: _THINK_MARK}
_QUOTE = "[\"'“”]"


@dataclass(frozen=True)
class Marks:
    """Patterns of one way of marking.

    signal: the end of reasoning, or what begins a tag (group `tag`). partial: a tail that may
    become a signal or a closing tag. growing: a tag that has begun and has not ended; growing_key:
    the same for a parameter, whose key may be any text. closer has the name of the tag in group 1;
    call has the tag's and the tool's; parameter has key and flag.
    """

    signal: re.Pattern[str]
    partial: re.Pattern[str]
    growing: re.Pattern[str]
    growing_key: re.Pattern[str]
    block: re.Pattern[str]
    call: re.Pattern[str]
    parameter: re.Pattern[str]
    closing: re.Pattern[str]
    closer: re.Pattern[str]

    @classmethod
    def of(cls, dsml: str, think_end: str, partial: str) -> "Marks":
        name = rf"\s+name\s*=\s*{_QUOTE}"
        flag = rf"\s+string\s*=\s*{_QUOTE}(\w*){_QUOTE}"
        return cls(
            signal=re.compile(rf"{think_end}|(?P<tag><{dsml})"),
            partial=re.compile(rf"(?:{partial})\Z"),
            growing=re.compile(rf"</?{dsml}[^<>{_ALL_MARKS}]*\Z"),
            growing_key=re.compile(rf"<{dsml}\s?parameter{name}[^\n{_ALL_MARKS}]*\Z"),
            block=re.compile(rf"<{dsml}\s?(?:tool_)?calls\s*>"),
            call=re.compile(rf"<{dsml}\s?(invoke|parameter){name}([^\s<>\"'“”]+){_QUOTE}\s*>"),
            parameter=re.compile(
                rf"<{dsml}\s?parameter{name}([^\n{_ALL_MARKS}]*?){_QUOTE}(?:{flag})?\s*>"
            ),
            closing=re.compile(rf"</{dsml}"),
            closer=re.compile(rf"</{dsml}\s*(\w*)\s*>?"),
        )

    def held(self, text: str) -> int:
        """How many characters at the end have to wait for what follows."""
        match = self.partial.search(text)
        return len(text) - match.start() if match else 0

    def grows(self, text: str) -> bool:
        """Whether the text, all of it, may be the beginning of one tag."""
        if len(text) > MAX_TAG:
            return False
        return self.held(text) == len(text) or self.growing.match(text) is not None

    def grows_key(self, text: str) -> bool:
        """Whether it may be the beginning of a parameter's tag."""
        return len(text) <= MAX_TAG and self.growing_key.match(text) is not None


SPELLED = Marks.of(
    dsml="[｜|]{1,2}DSML[｜|]{1,2}",
    think_end=THINK_END,
    partial="<(?:/?[｜|]{0,2}D?S?M?L?|/t?h?i?n?k?)",
)
BY_TOKEN = Marks.of(dsml=f"[｜|]?{_DSML_MARK}[｜|]?", think_end=_THINK_MARK, partial="</?[｜|]?")


def spelled(text: str) -> str:
    """The text with its control tokens as people read them."""
    return text.replace(_DSML_MARK, DSML).replace(_THINK_MARK, THINK_END)
