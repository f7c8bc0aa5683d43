"""Validates conversations and converts them to plain values before a chat template renders them.

Messages and tools may be any mappings; the result has JSON types only: dicts, lists, strings, numbers, booleans and None. Every
text that the caller gives is in the result, or a `UsageError` names the message and the problem. Many templates silently drop
what they do not expect (a list as `content`, an unknown role); this module refuses it instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from engine.checkpoint.json_file import show
from engine.errors import UsageError

Message = Mapping[str, Any]
"""`role` and `content`, plus keys that the template uses, such as `tool_calls`."""

ROLES: Final = ("system", "user", "assistant", "tool")
"""Roles that every template is expected to support; others are accepted if the template names them."""

ROLE_FORM: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""Form of a role: a word, so that it cannot be another part of a control token's spelling."""

PROMPT_LIMIT: Final = 1 << 22
"""Maximum characters of a prompt: about a million tokens, which the tokenizer needs some ten seconds for."""

DEPTH_LIMIT: Final = 64
"""Maximum nesting of lists and objects in a message."""

NUMBER_BITS: Final = 4096
"""Maximum bits of an integer: Python refuses to print longer ones."""


def plain_messages(messages: Sequence[Message], roles: Collection[str]) -> list[dict[str, Any]]:
    """Messages in the form for a template: `content` is one string, with parts of type `text` concatenated.

    `roles` are those that the template names in addition to `ROLES`. UsageError for another role, a content that is absent or
    not text (None is allowed with an assistant's `tool_calls`), tool calls without a name, and values that JSON lacks.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError("the messages are not a list", fix="give a list of messages with `role` and `content`")
    plain = [_message(message, number, roles) for number, message in enumerate(messages, 1)]
    check_size(sum(map(_characters, plain)))
    return plain


def plain_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    """Validated JSON schemas of functions; UsageError if one is not an object."""
    plain: list[Any] = []
    for number, tool in enumerate(tools or (), 1):
        if not isinstance(tool, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"tool {number} is not an object", fix="give the JSON schema of a function")
        plain.append(_plain(tool, f"tool {number}"))
    check_size(sum(map(_characters, plain)))
    return plain


def check_size(characters: int) -> None:
    """UsageError for a prompt of more than `PROMPT_LIMIT` characters."""
    if characters > PROMPT_LIMIT:
        raise UsageError(f"the prompt has {characters} characters, over {PROMPT_LIMIT}", fix="shorten it")


def _message(message: object, number: int, roles: Collection[str]) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, Mapping):
        _refuse(where, "it is not an object", "give `role` and `content`")
    plain = cast("dict[str, Any]", _plain(cast("Mapping[Any, Any]", message), where))
    role = plain.get("role")
    if role is None:
        _refuse(where, "it has no `role`", f"give one of {', '.join(ROLES)}")
    if not isinstance(role, str) or not ROLE_FORM.fullmatch(role) or (role not in ROLES and role not in roles):
        _refuse(where, f"its role is {show(role)}", f"give one of {', '.join(ROLES)}")
    calls = plain.get("tool_calls")
    if calls is not None:
        if role != "assistant":
            _refuse(where, f"a message of the role {role} has no `tool_calls`", "give them to the assistant's")
        _check_calls(calls, where)
    thoughts = plain.get("reasoning_content")
    if thoughts is not None and (role != "assistant" or not isinstance(thoughts, str)):
        _refuse(where, "`reasoning_content` is a text in an assistant's message", "leave it out elsewhere")
    if plain.get("content") is not None:
        plain["content"] = _content(plain["content"], where)
    elif not calls:
        _refuse(where, f"its `content` {'is null' if 'content' in plain else 'is absent'}", "give a text")
    return plain


def _content(content: object, where: str) -> str:
    """The content as one string: a string, or the texts of a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, f"its `content` is {show(content)}", "give a text or a list of parts of type `text`")
    texts: list[str] = []
    for number, part in enumerate(cast("list[object]", content), 1):
        fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
        if fields.get("type") != "text":
            kind = f"of type {show(fields['type'])}" if "type" in fields else show(cast("object", part))
            _refuse(where, f"part {number} of its `content` is {kind}", "give parts of type `text`: the model takes no others")
        text = fields.get("text")
        if not isinstance(text, str) or len(fields) > 2:
            _refuse(where, f"part {number} of its `content` is not `type` and `text` alone", "give these two")
        texts.append(text)
    return "".join(texts)


def _check_calls(calls: object, where: str) -> None:
    """Check tool calls, in OpenAI's format or as bare functions: each needs a name and arguments."""
    if not isinstance(calls, list):
        _refuse(where, f"its `tool_calls` are {show(calls)}", "give a list")
    for number, call in enumerate(cast("list[object]", calls), 1):
        fields = cast("dict[str, object]", call) if isinstance(call, dict) else {}
        function = fields.get("function", fields)
        function_fields = cast("dict[str, object]", function) if isinstance(function, dict) else {}
        if not isinstance(function_fields.get("name"), str):
            _refuse(where, f"tool call {number} has no `name`", "give the function's name and its arguments")
        if not isinstance(function_fields.get("arguments"), str | dict):
            _refuse(where, f"the `arguments` of tool call {number} are neither an object nor a text", "give an object")


def _plain(value: object, where: str, depth: int = 0) -> Any:
    """A deep copy of a value in JSON types; UsageError for anything else."""
    if depth > DEPTH_LIMIT:
        _refuse(where, f"it is nested over {DEPTH_LIMIT} levels", "flatten it")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if value.bit_length() > NUMBER_BITS:
            _refuse(where, f"it holds {show(value)}", "give it as a text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            _refuse(where, f"it contains {value}, which JSON cannot express", "give a finite number")
        return float(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        bad_key = next((key for key in items if not isinstance(key, str)), None)
        if bad_key is not None:
            _refuse(where, f"a key of it is of type {type(bad_key).__name__}", "give keys that are texts")
        return {str.__str__(cast("str", key)): _plain(item, where, depth + 1) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where, depth + 1) for item in cast("Iterable[object]", value)]
    return _refuse(where, f"it holds a value of type {type(value).__name__}", "give what JSON has")


def _characters(value: object) -> int:
    """Number of characters of all strings in a plain value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _characters(item) for key, item in cast("dict[str, object]", value).items())
    return sum(map(_characters, cast("list[object]", value))) if isinstance(value, list) else 1


def _refuse(where: str, what: str, fix: str) -> NoReturn:
    raise UsageError(f"the chat template cannot render {where}: {what}", fix=fix)
