"""What a request says of the form of its generation, as one grammar of llguidance.

In: `response_format`, `structured_outputs` or a `guided_` field, and tools that are strict or have to be called. Out: the
grammar, or an error that names the field. JSON has bounded white space, so that no generation is white space without end. A
call of a tool is in the form of the model (`engine.serving.tool_calls`, `xml_grammar`); a text before it is free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from engine.errors import DeviceError, MissingPackage, UsageError
from engine.serving.errors import ApiError, engine_failed, invalid
from engine.serving.grammar_compiler import WHITE_SPACE, WHOLE
from engine.serving.grammar_process import GrammarEnded
from engine.serving.openai_types import ChatRequest, Generation
from engine.serving.options import ToolForm
from engine.serving.tool_calls import CLOSE, OPEN
from engine.serving.xml_grammar import call_rules

MOST_CHOICES: Final = 4096
ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
ENDED: Final = "grammar_ended"
"""The code of the error for a grammar that ended the process that checks it."""

Make = Callable[[str, Any], str]
"""`Compiler.made`, or that of another process: the grammar of a form's kind and what it has."""
Form = tuple[str, str, Any]
"""The name of the field, the kind of what it has (`json`, `regex`, `choice` or `grammar`), and that."""


def form_of(request: Generation) -> Form | None:
    """The form that a request asks for; ApiError if it asks for several, or if a field lacks what it needs."""
    found: list[Form] = []
    if (asked := request.response_format) is not None and asked.type != "text":
        if asked.type == "json_schema" and asked.json_schema is None:
            raise invalid("response_format", "`json_schema` is missing")
        schema = ANY_OBJECT if asked.json_schema is None else asked.json_schema.schema
        found.append(("response_format", "json", schema if asked.type == "json_schema" else ANY_OBJECT))
    if (structured := request.structured_outputs) is not None:
        forms = {"json": structured.json, "regex": structured.regex, "choice": structured.choice}
        forms |= {"grammar": structured.grammar, "json_object": ANY_OBJECT if structured.json_object else None}
        given = [("structured_outputs", kind.partition("_")[0], value) for kind, value in forms.items() if value is not None]
        if not given:
            raise invalid("structured_outputs", "it has none of `json`, `json_object`, `regex`, `choice`, `grammar`")
        found += given
    guided = {"json": request.guided_json, "regex": request.guided_regex, "choice": request.guided_choice}
    guided["grammar"] = request.guided_grammar
    found += [(f"guided_{kind}", kind, value) for kind, value in guided.items() if value is not None]
    if len(found) > 1:
        raise invalid(found[1][0], f"with `{found[0][0]}` there are two forms; give one")
    return found[0] if found else None


def grammar_of(form: Form, make: Make) -> str:
    """The grammar of a form; ApiError if it is none."""
    field, kind, value = form
    if kind == "json":
        value = _schema(field, value)
    elif kind == "choice" and (not 0 < len(value) <= MOST_CHOICES or not all(value)):
        raise invalid(field, f"it is not 1 to {MOST_CHOICES} texts, none of which is empty")
    return _made(make, field, kind, value)


def is_strict(tool: dict[str, Any]) -> bool:
    """Whether calls of a tool must have arguments of its schema."""
    function: Any = tool.get("function")
    return isinstance(function, dict) and cast("dict[str, Any]", function).get("strict") is True


def tools_form(
    request: ChatRequest, tools: Sequence[dict[str, Any]], tags: tuple[int | None, int | None], make: Make,
    form_of_calls: ToolForm = "hermes",
) -> str | None:  # fmt: skip
    """The grammar of generations that may, or must, call tools; None if there are none, or calls are free. `tags`: the tokens
    around a call, None for one that is spelled. ApiError for a tool that is not there, or a form that cannot be had next to
    calls."""
    choice, single = request.tool_choice, not request.parallel_tool_calls
    named = _named(choice)
    functions = [_function(tool) for tool in tools]
    must = named is not None or choice == "required"
    if must and not functions:
        raise invalid("tool_choice", "there are no tools")
    if named is not None and (functions := [one for one in functions if one["name"] == named]) == []:
        raise invalid("tool_choice", f"there is no tool {named[:64]!r}")
    strict = any(map(is_strict, tools))
    form = form_of(request)
    if not functions or not (must or strict or single or form is not None):
        return None
    if form is not None and form[1] != "json":
        raise invalid(form[0], "with `tools` it can be JSON alone")
    field = "tool_choice" if must else "tools" if strict or form is None else form[0]
    whole = None if form is None or must else _json(_schema(form[0], form[2]))
    try:
        return _made(make, field, WHOLE, _lark(functions, tags, form_of_calls, make, must=must, single=single, whole=whole))
    except ApiError as error:
        if error.status != 400 or error.code == ENDED:
            raise
        for function in functions:  # which of the schemas it is, without the grammar around it
            _check_schema(make, "tools", _arguments(function, must=must), f"`parameters` of {function['name'][:64]!r}: ")
        if form is not None:
            _check_schema(make, form[0], form[2])
        raise


def _made(make: Make, field: str, kind: str, value: Any) -> str:
    """A grammar that llguidance takes; ApiError that says why it does not, or that it cannot be asked now."""
    try:
        return make(kind, value)
    except GrammarEnded as error:
        raise ApiError(400, f"`{field}`: {error.what}", param=field, code=ENDED) from None
    except MissingPackage as error:
        raise engine_failed(str(error)) from None
    except UsageError as error:
        raise invalid(field, error.what) from None
    except DeviceError as error:
        raise ApiError(503, error.what, code="grammars_unavailable", kind="server_error", retry=True) from None


def _check_schema(make: Make, field: str, schema: Any, where: str = "") -> None:
    """ApiError that says why a JSON schema cannot be kept to; it begins with `where`."""
    try:
        grammar_of((field, "json", schema), make)
    except ApiError as error:
        if error.status == 400:
            raise invalid(field, where + error.message.removeprefix(f"`{field}`: ")) from None
        raise


def _lark(
    functions: Sequence[dict[str, Any]], tags: tuple[int | None, int | None], form: ToolForm, make: Make, *, must: bool,
    single: bool, whole: str | None,
) -> str:  # fmt: skip
    """The grammar of calls, and of what may stand before, between and instead of them: a free text, or one of a form (`whole`).
    A free text spells no opening tag: what follows one is a call to whoever reads the text."""
    opens, closes = (
        f"<[{token}]>" if token is not None else _text(tag) for tag, token in zip((OPEN, CLOSE), tags, strict=True)
    )
    calls = " | ".join(f"call_{number}" for number in range(len(functions)))
    more = "" if single else ' ("\\n" one)*'
    if must or whole is not None:
        start = f"one{more}" + ("" if must else " | whole")
    else:
        start = "text | free" if single else "free* text"
    lines = ["%llguidance {}", f"start: {start}", f"one: {opens} body", f"body: ({calls}) {closes}"]
    if whole is not None:
        lines.append(f"whole: {whole}")
    if not must and whole is None:
        free = f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/"
        lines += ["text: TEXT", f"free: TEXT {opens} body", free]
    for number, function in enumerate(functions):
        name, schema = function["name"], _arguments(function, must=must)
        if form == "xml":
            _check_schema(make, "tools", schema, f"`parameters` of {name[:64]!r}: ")
        lines += call_rules(name, number, schema, _json) if form == "xml" else [_json_call(name, number, schema)]
    return "\n".join(lines) + "\n"


def _json_call(name: str, number: int, schema: dict[str, Any]) -> str:
    """The rule of a call in the Hermes form, between its tags."""
    begin = _text(f'\n{{"name": {json.dumps(name)}, "arguments": ')
    return f"call_{number}: {begin} {_json(schema)} {_text('}' + chr(10))}"


def _arguments(function: dict[str, Any], *, must: bool) -> Any:
    """The schema of a call's arguments: that of a tool that is strict or has to be called, else any object."""
    schema = function.get("parameters") if must or function.get("strict") is True else None
    return _schema("tools", ANY_OBJECT if schema is None else schema)


def _named(choice: str | dict[str, Any]) -> str | None:
    """The tool that a choice names; ApiError for a choice that is none."""
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise invalid("tool_choice", "it is none of `auto`, `none`, `required`, and names no function")
        return None
    function: Any = choice.get("function", choice)
    name: Any = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise invalid("tool_choice", "it names no function")
    return name


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function: Any = tool.get("function")
    if not isinstance(function, dict) or not isinstance(cast("dict[str, Any]", function).get("name"), str):
        raise invalid("tools", "one has no `function` with a `name`")
    return cast("dict[str, Any]", function)


def _schema(field: str, value: Any) -> dict[str, Any]:
    """A JSON schema, which may be a text; ApiError if it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise invalid(field, f"the schema is no JSON: {error}") from None
    if value is True:
        return {}
    if not isinstance(value, dict):
        raise invalid(field, "the schema is no object")
    return cast("dict[str, Any]", value)


def _json(schema: dict[str, Any]) -> str:
    own: Any = schema.get("x-guidance", {})
    return "%json " + json.dumps(schema | {"x-guidance": {**own, **WHITE_SPACE} if isinstance(own, dict) else WHITE_SPACE})


def _text(text: str) -> str:
    """A text of a Lark grammar."""
    return json.dumps(text)
