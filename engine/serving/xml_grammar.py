"""The grammar of a call in the XML form, for tools that are strict or have to be called.

A parameter whose value can be no text is JSON of its schema. A text is free up to the first `</parameter>`; `enum`, `const`,
lengths and `pattern` are held. Parameters come in the order of the schema. What cannot be held in this form is refused by name:
nothing is let through as if it had been held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from engine.serving.errors import invalid
from engine.serving.xml_calls import END_FUNCTION, END_VALUE, FUNCTION, NAME, PARAMETER
from engine.serving.xml_values import ANY, TEXT, json_text, json_value, kinds_of, resolved

NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "$schema", "$comment", "deprecated", "readOnly", "writeOnly", "x-guidance"}
)
"""Keywords of a schema that say nothing of a value."""
OF_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "strict"})
OF_TEXT: Final = frozenset({"type", "minLength", "maxLength", "pattern", "enum", "const"})
FREE: Final = "/(.|\\n)*/"
NO_END: Final = r"~/(.|\n)*<\/parameter>(.|\n)*/"

JsonRule = Callable[[dict[str, Any]], str]
"""The rule of JSON of a schema."""


def call_rules(name: str, number: int, schema: dict[str, Any], json_rule: JsonRule) -> list[str]:
    """The rules of a call of a tool, between its tags: `call_NUMBER` and what it needs. `schema`: of its arguments. ApiError
    for what the form cannot hold."""
    where = f"`parameters` of {name[:64]!r}: "
    _check_name(name, where)
    if unknown := sorted(schema.keys() - OF_OBJECT - NOTES):
        raise invalid("tools", f"{where}`{unknown[0][:64]}` cannot be held in the XML form of calls")
    given: Any = schema.get("properties", {})
    required: Any = schema.get("required", [])
    if schema.get("type", "object") != "object" or not isinstance(given, dict) or not isinstance(required, list):
        raise invalid("tools", f"{where}the arguments are no object with properties")
    properties = cast("dict[str, Any]", given)
    properties |= {str(key): {} for key in cast("list[Any]", required) if key not in properties}
    begin, end = _text(f"\n{FUNCTION}{name}>\n"), _text(f"{END_FUNCTION}\n")
    if not properties:
        more = "" if schema.get("additionalProperties") is False else f" any_{number}*"
        free = f'"{PARAMETER}" /[^<>\\n]{{1,64}}/ ">\\n" BODY_{number} {_text(_TAIL)}'
        rules = (
            [] if not more else [f"any_{number}: ANY_{number}", f"ANY_{number}: {free}", f"BODY_{number}: {FREE} & {NO_END}"]
        )
        return [f"call_{number}: {begin}{more} {end}", *rules]
    rules: list[str] = []
    words: list[str] = []
    for index, (key, one) in enumerate(properties.items()):
        rule = f"p_{number}_{index}"
        _check_name(key, where)
        rules += _parameter(rule, key, one, schema, json_rule, f"{where}{key[:64]!r}: ")
        words.append(rule if key in required else f"{rule}?")
    return [f"call_{number}: {begin} {' '.join(words)} {end}", *rules]


_TAIL: Final = f"\n{END_VALUE}\n"


def _parameter(
    rule: str, key: str, schema: Any, root: Mapping[str, Any], json_rule: JsonRule, where: str
) -> list[str]:  # fmt: skip
    """The rules of a parameter and its value. A text and its tags are one token of the grammar, since a text ends nowhere else
    than at its closing tag."""
    fields = _followed(schema, root)
    kinds = kinds_of(fields, root)
    head, tail = _text(f"{PARAMETER}{key}>\n"), _text(_TAIL)
    if "string" not in kinds:
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return [f"{rule}: {head} {json_rule(shared | fields)} {tail}"]
    upper = rule.upper()
    body, more = _body(fields, root, upper, where)
    return [f"{rule}: {upper}", f"{upper}: {head} {body} {tail}", *more]


def _body(fields: dict[str, Any], root: Mapping[str, Any], name: str, where: str) -> tuple[str, list[str]]:
    """The value of a parameter that may be a text, as an expression of a token, and tokens that it needs."""
    for several in ("anyOf", "oneOf"):
        if several in fields and not fields.keys() - {several} - NOTES:
            return _alternatives([_followed(one, root) for one in fields[several]], root, name, where)
    if unknown := sorted(fields.keys() - OF_TEXT - NOTES):
        raise invalid("tools", f"{where}`{unknown[0][:64]}` of a text cannot be held in the XML form of calls")
    values: Any = [fields["const"]] if "const" in fields else fields.get("enum")
    bounds = {keyword for keyword in ("minLength", "maxLength", "pattern") if keyword in fields}
    if isinstance(values, list):
        return _values(cast("list[Any]", values), fields, root, where), []
    if kinds_of(fields, root) not in (TEXT, ANY) and bounds:
        raise invalid("tools", f"{where}`{min(bounds)}` of what may be no text cannot be held in the XML form of calls")
    expressions = [FREE, NO_END]
    if bounds - {"pattern"}:
        expressions.append(f"/(.|\\n){{{int(fields.get('minLength', 0))},{fields.get('maxLength', '')}}}/")
    if "pattern" in fields:
        expressions.append(_pattern(str(fields["pattern"])))
    return f"{name}_BODY", [f"{name}_BODY: {' & '.join(expressions)}"]


def _values(values: list[Any], fields: dict[str, Any], root: Mapping[str, Any], where: str) -> str:
    """One of some values. Each of them has to be read back as itself."""
    if len(fields.keys() & OF_TEXT - {"type"}) > 1:
        raise invalid("tools", f"{where}`enum` and other bounds of a text cannot be held together in the XML form of calls")
    written = [value if isinstance(value, str) else json.dumps(value) for value in values]
    kinds = kinds_of(fields, root)
    wrong = [
        text for text, value in zip(written, values, strict=True)
        if END_VALUE in text or (kinds != TEXT and json_value(text, kinds) != (json_text(text) if value == text else text))
    ]  # fmt: skip
    if not written or wrong:
        raise invalid("tools", f"{where}values of `enum` cannot be distinguished in the XML form of calls")
    return f"({' | '.join(map(_text, written))})"


def _alternatives(
    several: list[dict[str, Any]], root: Mapping[str, Any], name: str, where: str
) -> tuple[str, list[str]]:  # fmt: skip
    """A text, or something else of no narrower type than any text would be read as."""
    texts = [one for one in several if "string" in kinds_of(one, root)]
    for other in several:
        if other not in texts and other.keys() - {"type"} - NOTES:
            raise invalid("tools", f"{where}a text or a value of a schema cannot be held in the XML form of calls")
    if len(texts) != 1 or texts[0].keys() - {"type"} - NOTES:
        raise invalid("tools", f"{where}bounds of one of several kinds cannot be held in the XML form of calls")
    return _body({"type": "string"}, root, name, where)


def _pattern(pattern: str) -> str:
    """What contains a match of a regular expression, as JSON schema has it."""
    begin, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[int(begin) : len(pattern) - int(end)].replace("/", "\\/")
    return f"/{'' if begin else '(.|' + chr(92) + 'n)*'}({inner}){'' if end else '(.|' + chr(92) + 'n)*'}/"


def _followed(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without references at its top."""
    for _ in range(32):
        if not isinstance(schema, dict):
            return {}
        fields = cast("dict[str, Any]", schema)
        if "$ref" not in fields or fields.keys() - {"$ref"} - NOTES:
            return fields
        schema = resolved(str(fields["$ref"]), root)
    return {}


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        raise invalid("tools", f"{where}the name {name[:64]!r} cannot be written in the XML form of calls")


def _text(text: str) -> str:
    """A text of a Lark grammar."""
    return json.dumps(text)
