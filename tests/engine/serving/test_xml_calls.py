"""Calls of tools in the XML form: found in every way to cut the text, typed by the schema, and held by a grammar."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.serving.constraints import Constraints
from engine.serving.errors import ApiError
from engine.serving.generated_text import GeneratedText, Part, joined
from engine.serving.grammar_compiler import Compiler
from engine.serving.grammars import Make, tools_form
from engine.serving.openai_types import ChatRequest, read
from engine.serving.served_model import ServedModel
from engine.serving.tool_calls import Arguments, ToolCall
from engine.serving.xml_calls import XmlCalls
from engine.serving.xml_values import json_value, kinds_of
from tests.engine.serving.test_grammars import texts

SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "part": {"type": "number"}, "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "place": {"$ref": "#/$defs/place"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}, "kind": {"enum": ["1", "b"]},
    }, "required": ["text"], "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


def call(*parameters: tuple[str, str], name: str = "f") -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def pushed(text: str, cuts: Iterable[int]) -> list[str | ToolCall | Arguments]:
    bounds = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    finder = XmlCalls(TOOLS)
    found = [one for first, last in itertools.pairwise(bounds) for one in finder.push(text[first:last])]
    return [*found, *finder.finish()]


def found(text: str, cuts: Iterable[int] = ()) -> list[str | ToolCall]:
    """Texts, joined where they follow each other, and calls with all of their arguments."""
    parts = [
        Part(content=one) if isinstance(one, str) else Part(call=one) if isinstance(one, ToolCall) else Part(more=one)
        for one in pushed(text, cuts)
    ]
    return [part.call or part.content for part in joined(parts)]


def arguments(text: str) -> Any:
    (one,) = found(text)
    assert isinstance(one, ToolCall) and one.whole and one.name == "f"
    return json.loads(one.arguments)


LINES = 'a "b"\n\n  <tool_call> </function>\n<parameter=x> \\ é\n'
HEAD = "<tool_call>\n<function=f>\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call(), [ToolCall("f", "{}")]),
        ("So: " + call(("text", "a")) + "\n" + call(("count", "3"), name="g"),
         ["So: ", ToolCall("f", '{"text":"a"}'), "\n", ToolCall("g", '{"count":"3"}')]),
        (call(("text", LINES), ("count", "3")), [ToolCall("f", json.dumps({"text": LINES, "count": 3}, ensure_ascii=False,
                                                                          separators=(",", ":")))]),
        ("<tool_call><function=f><parameter=text>a</parameter></function></tool_call>x", [ToolCall("f", '{"text":"a"}'), "x"]),
        (HEAD + "<parameter=text>\na\n</parameter>\n</tool_call>", [ToolCall("f", '{"text":"a"}')]),
        ("<tool_call>no</tool_call>", ["<tool_call>no</tool_call>"]),
        ('<tool_call>{"name": "f"}</tool_call>', ['<tool_call>{"name": "f"}</tool_call>']),
        ("<tool_call>\n<function=f", ["<tool_call>\n<function=f"]),
        ("<tool_call>" + call(), ["<tool_call>", ToolCall("f", "{}")]),
        (HEAD + "<parameter=text>\na</para", [ToolCall("f", '{"text":"a</para', whole=False)]),
        (HEAD + "<parameter=count>\n12", [ToolCall("f", '{"count":"12', whole=False)]),
        (HEAD + "<parameter=text>\na\n</parameter>\n", [ToolCall("f", '{"text":"a"', whole=False), "\n"]),
        (HEAD + "<parameter=text>\na\n</parameter>oh", [ToolCall("f", '{"text":"a"', whole=False), "oh"]),
        (HEAD + "</function>\n<function=g>", [ToolCall("f", "{}"), "\n<function=g>"]),
        ("<function=f>\n</function>", ["<function=f>\n</function>"]),
    ],
    ids=range(15),
)  # fmt: skip
def test_calls(text: str, expected: list[str | ToolCall]) -> None:
    assert found(text) == expected
    assert found(text, range(len(text))) == expected
    for cut in range(len(text)):
        assert found(text, [cut]) == expected


def test_values_have_the_types_of_the_schema() -> None:
    written = {
        "text": "5", "count": "5", "part": "-1.5e3", "sure": "True", "tags": '["a",\n "b"]', "place": '{"x": 1}',
        "maybe": "null", "any": "[1]", "kind": "1", "unknown": "7",
    }  # fmt: skip
    assert arguments(call(*written.items())) == {
        "text": "5", "count": 5, "part": -1500.0, "sure": True, "tags": ["a", "b"], "place": {"x": 1}, "maybe": None,
        "any": [1], "kind": "1", "unknown": "7",
    }  # fmt: skip
    wrong = {"count": "5.5", "part": "NaN", "sure": "yes", "tags": "['a']", "place": "[1]", "maybe": "5", "any": "x"}
    assert arguments(call(*wrong.items())) == wrong, "what is no value of its type stays as it was written"
    number = "1" + 40 * "0"
    assert number in json_value(number, kinds_of({"type": "integer"}, {})), "a long number loses no digit"
    assert json_value("1e999", kinds_of({"type": "number"}, {})) == "1e999"
    assert json_value("[" * 100_000, kinds_of({"type": "array"}, {})).startswith('"[')
    loop = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert "string" in kinds_of({"$ref": "#/$defs/a"}, loop)


WORDS = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=text>", "<parameter=count>", "</parameter>",
         call(("text", "a\n")), call(("count", "1"), ("text", "")), "\n", "\n\n", "<", " ", "x", '"', "3", " " * 65]
    ),
    max_size=10,
).map("".join)  # fmt: skip


@settings(max_examples=300)
@given(text=WORDS, cuts=st.lists(st.integers(0, 250), max_size=8))
@example(text=HEAD + "<parameter=text>\n\n\n</parameter></function></tool_call>", cuts=[41, 42, 43])
def test_parts_do_not_depend_on_the_pieces(text: str, cuts: Sequence[int]) -> None:
    assert found(text, cuts) == found(text) == found(text, range(len(text)))
    for one in found(text):
        if isinstance(one, ToolCall) and one.whole:
            assert isinstance(json.loads(one.arguments), dict)
        elif isinstance(one, ToolCall):
            with pytest.raises(ValueError, match=r"\S"):
                json.loads(one.arguments)


@settings(max_examples=100)
@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=4))
def test_a_text_is_what_was_written(values: list[str]) -> None:
    values = [value for value in values if "</parameter>" not in value]
    named = [(f"p{number}", value) for number, value in enumerate(values)]
    assert arguments(call(*named)) == dict(named)


def test_a_long_text_comes_while_it_is_written() -> None:
    finder = XmlCalls(TOOLS)
    assert finder.push(HEAD + "<parameter=text>\n") == [ToolCall("f", "", whole=False), Arguments('{"text":"')]
    assert finder.push("one\n") == [Arguments("one")]
    assert finder.push("two</par") == [Arguments("\\ntwo")]
    assert finder.push("ameter>\n") == [Arguments('"')]
    assert finder.push("</function>") == [Arguments("}", last=True)]


@pytest.fixture(scope="module")
def model(talker: Path) -> ServedModel:
    return ServedModel(talker, 256, "talker", "xml")


@pytest.fixture(scope="module")
def constraints(talker: Path, model: ServedModel) -> Constraints:
    return Constraints(talker, model.vocabulary, model.generation.eos_token_id)


@pytest.fixture(scope="module")
def make(talker: Path, model: ServedModel) -> Make:
    """In this process: its errors are those of the process that is for it."""
    return Compiler(talker, model.vocabulary, model.generation.eos_token_id).made


def test_a_call_that_was_cut_is_no_call_to_act_on(model: ServedModel) -> None:
    for text, whole in ((call(("text", "a b")), True), (HEAD + "<parameter=text>\na b", False)):
        made = GeneratedText(model.text, (), (), tools=model.finder(TOOLS))
        parts = [part for token in model.text.encode(text) for part in made.push(token)] + made.finish()
        assert [part.call.whole for part in joined(parts) if part.call] == [whole]
        assert made.finish_reason("stop") == ("tool_calls" if whole else "stop")


BOUNDED: dict[str, Any] = {
    "type": "object", "properties": {
        "kind": {"enum": ["a", "b c"]}, "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "code": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "place": {"$ref": "#/$defs/place"}, "maybe": {"type": "boolean"}, "some": {"enum": [1, "x", None]},
    }, "required": ["kind", "name", "code", "count", "place"], "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
                        "required": ["x"], "additionalProperties": False}},
}  # fmt: skip


def tool(name: str, parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def grammar(make: Make, model: ServedModel, tools: list[dict[str, Any]], **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, **fields}
    request = read(json.dumps(body).encode(), ChatRequest)
    made = tools_form(request, tools, model.call_tags, make, "xml")
    assert made is not None
    return made


def calls_of(model: ServedModel, text: str, tools: list[dict[str, Any]]) -> list[str | ToolCall]:
    finder = model.finder(tools)
    ones = [*finder.push(text), *finder.finish()]
    parts = [Part(content=one) if isinstance(one, str) else Part(call=one) if isinstance(one, ToolCall) else Part(more=one)
             for one in ones]  # fmt: skip
    return [part.call or part.content for part in joined(parts)]


def test_a_tool_that_has_to_be_called_is(make: Make, model: ServedModel, constraints: Constraints) -> None:
    tools = [tool("held", BOUNDED), tool("num", {"type": "object", "properties": {"n": {"type": "number"}}})]
    for choice, single, names in (
        ("required", False, {"held", "num"}), ({"type": "function", "function": {"name": "held"}}, True, {"held"}),
    ):  # fmt: skip
        made = grammar(make, model, tools, tool_choice=choice, parallel_tool_calls=not single)
        drawn = texts(model, constraints, made, 6)
        assert len(drawn) == 6
        for text in drawn:
            parts = [part for part in calls_of(model, text, tools) if part != "\n"]
            assert parts and (len(parts) == 1 or not single)
            for part in parts:
                assert isinstance(part, ToolCall) and part.whole and part.name in names
                schema = next(one["function"]["parameters"] for one in tools if one["function"]["name"] == part.name)
                jsonschema.validate(json.loads(part.arguments), schema)


def test_a_strict_tool_next_to_a_free_one(make: Make, model: ServedModel, constraints: Constraints) -> None:
    tools = [tool("held", BOUNDED, strict=True), tool("free", {"not": {}})]
    made = grammar(make, model, tools)
    for prefer, name in (("ok <tool_call>\n<function=h", "held"), ("<tool_call>\n<function=f", "free")):
        text = next(iter(texts(model, constraints, made, 8, prefer)))
        one = next(part for part in calls_of(model, text, tools) if isinstance(part, ToolCall))
        assert one.name == name and one.whole
        if name == "held":
            jsonschema.validate(json.loads(one.arguments), BOUNDED)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, "`anyOf` cannot be held"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}, "`format` of a text"),
        ({"type": "object", "properties": {"a>": {"type": "string"}}}, "cannot be written"),
        ({"type": "object", "properties": {"a": {"enum": ["1", 2]}}}, "cannot be distinguished"),
        ({"type": "object", "properties": {"a": {"enum": ["</parameter>"]}}}, "cannot be distinguished"),
        ({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]}}},
         "a text or a value"),
        ({"type": "object", "properties": {"a": {"type": ["string", "null"], "minLength": 2}}}, "`minLength` of what may be"),
        ({"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}}, "parameters"),
        ({"type": "object", "properties": [1]}, "parameters"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_the_form_cannot_hold_is_refused(make: Make, model: ServedModel, parameters: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        grammar(make, model, [tool("f", parameters)], tool_choice="required")
    assert caught.value.param in ("tools", "tool_choice") and caught.value.status == 400
