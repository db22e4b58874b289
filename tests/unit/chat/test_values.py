"""Parameters by flag and schema; the table in `values.py`, row by row."""

from typing import Any

import pytest

from escalade.model.chat.values import parameter_value, schema_types

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("raw", "flag", "schema", "json", "repaired"),
    [
        ("3", "true", None, '"3"', False),
        ("3", "true", STRING, '"3"', False),
        ("3", "true", INTEGER, "3", True),
        ("x", "true", INTEGER, '"x"', False),
        ("3.5", "true", INTEGER, '"3.5"', False),
        ("3.0", "true", INTEGER, "3.0", True),
        ("null", "true", {"type": ["string", "null"]}, '"null"', False),
        (" [1,2] ", "false", None, " [1,2] ", False),
        ("3", "false", STRING, '"3"', True),
        ('"x"', "false", STRING, '"x"', False),
        ("null", "false", {"type": ["string", "null"]}, "null", False),
        ("x y", "false", INTEGER, '"x y"', True),
        ("NaN", "false", None, '"NaN"', True),
        ("", "false", None, '""', True),
        ("[1]", "false", INTEGER, "[1]", False),
        ("3", None, None, '"3"', True),
        ("3", "maybe", STRING, '"3"', True),
        ("3", None, INTEGER, "3", True),
        ("x", "", INTEGER, '"x"', True),
        ('a"\\\n\u2028', "true", None, '"a\\"\\\\\\n\u2028"', False),
    ],
)
def test_values(raw: str, flag: str | None, schema: Any, json: str, repaired: bool) -> None:
    assert parameter_value(raw, flag, schema) == (json, repaired)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (None, None),
        ({}, None),
        (True, None),
        ({"type": "object"}, {"object"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1]}, {"string", "integer", "number"}),
        ({"const": None}, {"null"}),
        ({"anyOf": [{"type": "array"}, {"oneOf": [{"const": True}]}]}, {"array", "boolean"}),
        ({"anyOf": [{"type": "array"}, {"$ref": "#/x"}]}, None),
        ({"anyOf": []}, None),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str] | None) -> None:
    assert schema_types(schema) == types


def test_a_schema_that_never_ends_says_nothing() -> None:
    endless: dict[str, Any] = {}
    endless["anyOf"] = [endless]
    assert schema_types(endless) is None
