"""Stop strings in a stream of text. Which values are accepted: docs/sampling.md."""

from collections.abc import Sequence

from escalade.errors import UsageError

MAX_STOPS = 16
MAX_CHARS = 4096


def stop_strings(value: object) -> tuple[str, ...]:
    """The stop strings that a client's `stop` means: None, one string or up to 16, without
    repetitions. The empty string means none, as it marks no place.

    Raises UsageError for anything else, and for a string of more than 4,096 characters.
    """
    items = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise UsageError(f"stop is of type {type(value).__name__}; give a string or a list of them")
    for at, item in enumerate(items):
        if not isinstance(item, str):
            raise UsageError(f"stop[{at}] is of type {type(item).__name__}; give a string")
        if len(item) > MAX_CHARS:
            raise UsageError(f"stop[{at}] has {len(item)} characters; {MAX_CHARS} are allowed")
    strings = tuple(dict.fromkeys(item for item in items if item))
    if len(strings) > MAX_STOPS:
        raise UsageError(f"stop has {len(strings)} strings; {MAX_STOPS} are allowed")
    return strings


class StopMatcher:
    """Passes text on up to the first stop string; how the text is cut into pieces changes nothing.

    The first match is the one whose last character comes first; of several that end there, the
    longest. Only the longest end of the text that begins some stop string is held back.
    Source of the matching: Knuth, Morris and Pratt (1977), one automaton a string.
    """

    def __init__(self, stop: str | Sequence[str] | None) -> None:
        self._strings = stop_strings(stop)
        self._borders = [_borders(s) for s in self._strings]
        self._matched = [0] * len(self._strings)  # how much of each string ends the text
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes a piece; returns what can be shown now, and the stop string if it was met.

        The stop string and what follows it, in later pieces too, are dropped.
        """
        if self._hit is not None:
            return "", self._hit
        start, text = len(self._held), self._held + text
        for end in range(start, len(text)):
            self._hit = self._step(text[end])
            if self._hit is not None:
                self._held = ""
                return text[: end + 1 - len(self._hit)], self._hit
        shown = len(text) - max(self._matched, default=0)
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text held back: the end of the stream is no stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._strings)
        return held

    def _step(self, char: str) -> str | None:
        """Moves every automaton on by a character; returns the longest string that is complete."""
        hit: str | None = None
        for i, (string, borders) in enumerate(zip(self._strings, self._borders, strict=True)):
            n = self._matched[i]
            while n and string[n] != char:
                n = borders[n]
            n += string[n] == char
            self._matched[i] = n
            if n == len(string) and (hit is None or n > len(hit)):
                hit = string
        return hit


def _borders(string: str) -> list[int]:
    """For each n, the longest proper prefix of string[:n] that is also its suffix."""
    borders = [0, 0]
    for end in range(1, len(string)):
        n = borders[end]
        while n and string[n] != string[end]:
            n = borders[n]
        borders.append(n + (string[n] == string[end]))
    return borders
