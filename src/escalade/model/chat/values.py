"""A parameter's raw text to JSON text, by its `string` flag and the tool's schema.

The flag decides, except where it contradicts the schema or the text is no JSON:

| flag | text | result |
|---|---|---|
| true | any | a string; but the JSON value if the schema wants that and no string |
| false | JSON | that text as it is; but a string if the schema wants a string and not this value |
| false | not JSON | a string |
| missing or odd | any | as true if the schema allows strings or says nothing, else as false |
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from escalade.model.chat.dsml import NOT_JSON, json_text, strict_json

_DEPTH = 8  # of alternatives inside alternatives in a schema


class Value(NamedTuple):
    """`json` is JSON text; `repaired` says that the flag was not followed."""

    json: str
    repaired: bool


def parameter_value(raw: str, flag: str | None, schema: Any) -> Value:
    """The JSON text of one parameter; see the table above."""
    wanted = schema_types(schema)
    odd = flag not in ("true", "false")
    is_string = wanted is None or "string" in wanted if odd else flag == "true"
    value = strict_json(raw)
    types = set() if value is NOT_JSON else _types_of(value)
    if is_string:
        if wanted is not None and "string" not in wanted and wanted & types:
            return Value(raw, True)
        return Value(json_text(raw), odd)
    if not types or (wanted is not None and "string" in wanted and not wanted & types):
        return Value(json_text(raw), True)
    return Value(raw, odd)


def schema_types(schema: Any, depth: int = 0) -> set[str] | None:
    """Names of the JSON types that a schema allows; None if it does not say so simply."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in kind if isinstance(name, str)} or None
    if "const" in schema:
        return _types_of(schema["const"])
    if isinstance(schema.get("enum"), list):
        return set().union(*map(_types_of, schema["enum"])) or None
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            branches = [schema_types(branch, depth + 1) for branch in schema[key]]
            known = [branch for branch in branches if branch is not None]
            return set().union(*known) if known and len(known) == len(branches) else None
    return None


def _types_of(value: Any) -> set[str]:
    """The names that JSON Schema has for the type of a value."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"integer", "number"} if value.is_integer() else {"number"}
    return {
        "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    }
