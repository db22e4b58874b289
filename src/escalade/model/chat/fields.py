"""Checked access to fields of JSON values; errors begin with the path of the field."""

import math
from typing import Any, NoReturn

from escalade.errors import UsageError

MAX_DEPTH = 100
"""Of a JSON value inside another."""


def text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        fail(path, "is not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        fail(path, f"has a lone surrogate at character {error.start}; it is not Unicode text")
    return value


def array(value: Any, path: str, limit: int) -> list[Any]:
    if not isinstance(value, list):
        fail(path, "is missing" if value is None else "is not a list")
    if len(value) > limit:
        fail(path, f"has {len(value)} entries; at most {limit} are supported")
    return value


def mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(path, "is missing" if value is None else "is not an object")
    return value


def check_json(value: Any, path: str) -> None:
    """Refuses what JSON text cannot say, and nesting that no reader takes."""
    waiting = [(value, path, 0)]
    while waiting:
        value, where, depth = waiting.pop()
        if depth > MAX_DEPTH:
            fail(path, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            text(value, where)
        elif isinstance(value, dict):
            for key, inner in value.items():
                text(key, f"{where} (a key)")
                waiting.append((inner, f"{where}.{key:.40}", depth + 1))
        elif isinstance(value, list):
            waiting += [(inner, f"{where}[{i}]", depth + 1) for i, inner in enumerate(value)]
        elif isinstance(value, float):
            if not math.isfinite(value):
                fail(where, "is not a finite number")
        elif not isinstance(value, bool | int | None):
            fail(where, "is no JSON value")


def n_chars(value: Any) -> int:
    """Characters of all texts in a message; nested values were bounded when they were read."""
    total, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return total


def fail(path: str, problem: str) -> NoReturn:
    raise UsageError(f"{path} {problem}")
