"""The types of a call's arguments, by a tool's JSON schema, and the JSON of a value that the model wrote as plain text.

The XML form has texts alone: `5` is a number in one parameter and a text in another. The schema decides. A value that may be
several things is the first that it is of: what JSON has besides texts, then a text. What is none of its types stays a text, so
that the program that is called sees what the model wrote. A parameter that the schema lacks is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

Kinds = frozenset[str]
"""Names of JSON schema's types that a value may have."""

TEXT: Final[Kinds] = frozenset({"string"})
ANY: Final[Kinds] = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
DEPTH: Final = 32
"""Maximum nesting of references and alternatives that are looked into; beyond it a value may be anything."""
WORDS: Final = {"true": ("boolean", "true"), "false": ("boolean", "false"), "null": ("null", "null"), "none": ("null", "null")}
"""Words of JSON and of Python: templates show the model earlier arguments as Python prints them."""


def kinds_of_tools(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Kinds]]:
    """For each function, the types of its parameters."""
    found: dict[str, dict[str, Kinds]] = {}
    for tool in tools:
        function = _fields(tool.get("function"))
        root = _fields(function.get("parameters"))
        properties = _fields(root.get("properties"))
        found[str(function.get("name"))] = {name: kinds_of(schema, root) for name, schema in properties.items()}
    return found


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Kinds:
    """The types of values that a schema allows. `root`: the schema that its references begin in."""
    fields = _fields(schema)
    if depth > DEPTH:
        return ANY
    found = ANY
    if isinstance(reference := fields.get("$ref"), str):
        found &= kinds_of(resolved(reference, root), root, depth + 1)
    if (types := fields.get("type")) is not None:
        names = [types] if isinstance(types, str) else cast("list[Any]", types) if isinstance(types, list) else []
        named = {str(name) for name in names}
        found &= named | ({"integer"} if "number" in named else set())
    values: Any = [fields["const"]] if "const" in fields else fields.get("enum")
    if isinstance(values, list):
        found &= {kind for value in cast("list[Any]", values) for kind in _kinds_of_value(value)}
    for name in ("anyOf", "oneOf"):
        if isinstance(several := fields.get(name), list):
            found &= {kind for one in cast("list[Any]", several) for kind in kinds_of(one, root, depth + 1)}
    if isinstance(several := fields.get("allOf"), list):
        for one in cast("list[Any]", several):
            found &= kinds_of(one, root, depth + 1)
    return found


def resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within a schema names, None if nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = _fields(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found if reference.startswith("#") else None


def json_value(raw: str, kinds: Kinds) -> str:
    """The JSON of a value that was written as `raw`, of one of `kinds`."""
    text = raw.strip()
    if (word := WORDS.get(text.lower())) is not None and word[0] in kinds:
        return word[1]
    try:
        value: Any = json.loads(text, parse_int=_any_integer, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return json_text(raw)
    if not isinstance(value, str) and kinds.intersection(_kinds_of_value(value)):
        return text
    return json_text(raw)


def json_text(text: str) -> str:
    """The JSON of a text."""
    return msgspec.json.encode(text).decode()


def _any_integer(_: str) -> int:
    """Stands for an integer, whose digits are kept as they are written: Python reads 4300 of them."""
    return 0


def _no_json(word: str) -> Any:
    """NaN and infinities, which Python reads and JSON lacks."""
    raise ValueError(word)


def _kinds_of_value(value: Any) -> Kinds:
    """The types that a value has."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"number", "integer"} if float(value).is_integer() else {"number"})
    names: dict[type[Any], str] = {str: "string", dict: "object", list: "array", type(None): "null"}
    return frozenset({names[type(value)]})


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
