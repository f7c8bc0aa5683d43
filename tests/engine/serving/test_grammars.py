"""Grammars: what a request may ask for, texts that keep to it, and one clear error for what is wrong. Texts are drawn at random
from the tokens that are allowed, which is the hardest model there is."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine.errors import UsageError
from engine.serving.constraints import Constraints, GrammarConstraint
from engine.serving.errors import ApiError
from engine.serving.grammar_compiler import Compiler
from engine.serving.grammars import Make, form_of, grammar_of, tools_form
from engine.serving.openai_types import ChatRequest, CompletionRequest, read
from engine.serving.protocol import Grammar
from engine.serving.served_model import ServedModel
from engine.serving.tool_calls import ToolCall, ToolCalls

PERSON: dict[str, Any] = {
    "type": "object", "properties": {
        "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"$ref": "#/$defs/kind"}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    }, "required": ["name", "age", "kind"], "additionalProperties": False, "$defs": {"kind": {"enum": ["a", "b"]}},
}  # fmt: skip
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


def chat(**fields: Any) -> ChatRequest:
    return read(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode(), ChatRequest)


def tool(name: str, parameters: Any = None, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or PERSON, "strict": strict}}


@pytest.fixture(scope="module")
def model(talker: Path) -> ServedModel:
    return ServedModel(talker, 256, "talker")


@pytest.fixture(scope="module")
def constraints(talker: Path, model: ServedModel) -> Constraints:
    return Constraints(talker, model.vocabulary, model.generation.eos_token_id)


@pytest.fixture(scope="module")
def make(talker: Path, model: ServedModel) -> Make:
    """In this process: its errors are those of the process that is for it."""
    return Compiler(talker, model.vocabulary, model.generation.eos_token_id).made


def drawn(model: ServedModel, one: GrammarConstraint, seed: int, prefer: str = "") -> tuple[list[int], bool]:
    """Random tokens that are allowed, those of the text `prefer` first; and whether the text is whole."""
    draw, ids = random.Random(seed), list[int]()
    preferred = model.text.encode(prefer)
    for _ in range(3000):
        if one.ended:
            break
        allowed = np.flatnonzero(one.allowed())
        wanted = preferred.pop(0) if preferred else -1
        token = wanted if wanted in allowed else int(draw.choice(allowed))
        one.accept(token)
        ids.append(token)
    return ids, one.ended and one.error is None


def text_of(model: ServedModel, ids: list[int]) -> str:
    return model.text.decode([token for token in ids if token not in model.generation.eos_token_id])


def texts(model: ServedModel, constraints: Constraints, grammar: str, count: int = 4, prefer: str = "") -> list[str]:
    found = [drawn(model, constraints.begin(Grammar(grammar)).result(), seed, prefer) for seed in range(count)]
    return [text_of(model, ids) for ids, whole in found if whole]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": SCHEMA}, {"structured_outputs": {"json": PERSON}}, {"guided_json": json.dumps(PERSON)},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
    ],
)  # fmt: skip
def test_texts_keep_to_a_schema(model: ServedModel, constraints: Constraints, fields: dict[str, Any], make: Make) -> None:
    form = form_of(chat(**fields))
    assert form is not None
    found = texts(model, constraints, grammar_of(form, make))
    assert len(found) == 4
    for text in found:
        jsonschema.validate(json.loads(text), PERSON)


def test_texts_keep_to_other_forms(model: ServedModel, constraints: Constraints, make: Make) -> None:
    def of(**fields: Any) -> list[str]:
        form = form_of(read(json.dumps({"prompt": "x", **fields}).encode(), CompletionRequest))
        assert form is not None
        return texts(model, constraints, grammar_of(form, make))

    assert form_of(chat(response_format={"type": "text"})) is None
    assert {*of(guided_choice=["yes", 'a "no"', "é"])} <= {"yes", 'a "no"', "é"}
    assert all(re.fullmatch("[0-9]{3}/[a-f]{2,5}", one) for one in of(structured_outputs={"regex": "[0-9]{3}/[a-f]{2,5}"}))
    assert {*of(guided_grammar='start: "a" "b"+ "."')} <= {"a" + "b" * count + "." for count in range(1, 3000)}
    assert {*of(structured_outputs={"grammar": 'root ::= "x" | "y"'})} <= {"x", "y"}
    form = form_of(chat(response_format={"type": "json_object"}))
    assert form is not None
    found = texts(model, constraints, grammar_of(form, make), 2, prefer='{"a": [1, {"b": null}]}')
    assert [json.loads(one) for one in found] == [{"a": [1, {"b": None}]}] * 2
    assert form_of(chat(structured_outputs={"json_object": True})) == ("structured_outputs", "json", {"type": "object"})


def calls_of(text: str) -> list[str | ToolCall]:
    calls = ToolCalls()
    return [*calls.push(text), *calls.finish()]


def test_a_tool_that_has_to_be_called_is(model: ServedModel, constraints: Constraints, make: Make) -> None:
    other = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
             "additionalProperties": False}  # fmt: skip
    tools = [tool("person"), tool("num", other)]
    for choice, single, names in (
        ("required", True, {"person", "num"}), ({"type": "function", "function": {"name": "num"}}, True, {"num"}),
        ({"type": "function", "name": "num"}, False, {"num"}),
    ):  # fmt: skip
        grammar = tools_form(
            chat(tools=tools, tool_choice=choice, parallel_tool_calls=not single), tools, model.call_tags, make
        )
        assert grammar is not None
        found = texts(model, constraints, grammar, 6)
        assert len(found) == 6
        for text in found:
            parts = [part for part in calls_of(text) if part != "\n"]
            assert parts and (len(parts) == 1 or not single)
            for part in parts:
                assert isinstance(part, ToolCall) and part.name in names
                jsonschema.validate(json.loads(part.arguments), PERSON if part.name == "person" else other)


def test_a_strict_tool_is_called_with_its_arguments_or_not_at_all(
    model: ServedModel, constraints: Constraints, make: Make
) -> None:
    tools = [tool("person", strict=True), tool("other", {"not": {}})]
    grammar = tools_form(chat(tools=tools), tools, model.call_tags, make)
    assert grammar is not None
    for prefer, name in (("ok, <tool_call>\n{\"name\": \"p", "person"), ("<tool_call>\n{\"name\": \"o", "other")):  # fmt: skip
        text = next(iter(texts(model, constraints, grammar, 8, prefer)))
        call = next(part for part in calls_of(text) if isinstance(part, ToolCall))
        assert call.name == name
        if name == "person":
            jsonschema.validate(json.loads(call.arguments), PERSON)
    one = constraints.begin(Grammar(grammar)).result()
    for token in model.text.encode("no call {"):
        assert one.allowed()[token]
        one.accept(token)
    assert one.allowed()[list(model.generation.eos_token_id)].all()
    assert tools_form(chat(tools=[tool("a")]), [tool("a")], model.call_tags, make) is None


def test_a_tool_or_a_text_of_a_form(model: ServedModel, constraints: Constraints, make: Make) -> None:
    tools = [tool("person")]
    grammar = tools_form(chat(tools=tools, response_format=SCHEMA), tools, model.call_tags, make)
    assert grammar is not None
    (text, *_) = texts(model, constraints, grammar, 4, prefer="{")
    jsonschema.validate(json.loads(text), PERSON)
    (text, *_) = texts(model, constraints, grammar, 4, prefer="<tool_call>")
    assert isinstance(calls_of(text)[0], ToolCall)


def test_a_thought_comes_before_the_text(model: ServedModel, constraints: Constraints, make: Make) -> None:
    opens, closes = (model.text.tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    (blank,) = model.text.encode("\n")
    grammar, free = grammar_of(("response_format", "json", PERSON), make), model.text.encode("hm }")
    ending = model.generation.eos_token_id

    def begun(one: GrammarConstraint) -> None:
        for token in (*free, closes):
            assert one.allowed()[token] and not one.allowed()[list(ending)].any()
            one.accept(token)
        (brace,) = model.text.encode("{")
        assert set(np.flatnonzero(one.allowed())) == {brace, blank} or one.allowed()[blank]
        one.accept(blank)
        assert one.allowed()[brace] and not one.allowed()[blank] and not one.allowed()[opens]
        ids, whole = drawn(model, one, 1)
        assert whole
        jsonschema.validate(json.loads(text_of(model, ids)), PERSON)

    begun(constraints.begin(Grammar(grammar, opens, closes, True, (blank,))).result())
    one = constraints.begin(Grammar(grammar, opens, closes, False, (blank,))).result()
    assert one.allowed()[opens] and not one.allowed()[free[0]]
    one.accept(opens)
    begun(one)
    silent = constraints.begin(Grammar(grammar, opens, closes, False, (blank,))).result()
    ids, whole = drawn(model, silent, 2, prefer="{")
    assert whole and text_of(model, ids).startswith("{")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "`json_schema` is missing"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": SCHEMA, "guided_regex": "a"}, "guided_regex", "two forms"),
        ({"structured_outputs": {}}, "structured_outputs", "none of"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "jsn"),
        ({"guided_json": {"type": "nonsense"}}, "guided_json", "nonsense"),
        ({"guided_json": "{"}, "guided_json", "no JSON"), ({"guided_json": {"$ref": "#/no"}}, "guided_json", "/no"),
        ({"guided_json": {"type": "string", "pattern": "("}}, "guided_json", "regex"),
        ({"guided_regex": "["}, "guided_regex", ""), ({"guided_choice": []}, "guided_choice", "1 to 4096"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
        ({"guided_json": {"enum": ["x" * 300000]}}, "guided_json", "longer than"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"), ({"tool_choice": "maybe"}, "tool_choice", "none of"),
        ({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice", "'b'"),
        ({"tools": [tool("a", {"not": {}}, strict=True)]}, "tools", "not"),
        ({"tools": [tool("a", strict=True)], "guided_regex": "a"}, "guided_regex", "JSON alone"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_error(fields: dict[str, Any], param: str, message: str, make: Make) -> None:
    with pytest.raises(ApiError) as found:
        request = chat(**fields)
        if tools_form(request, request.tools, (None, None), make) is None and (form := form_of(request)) is not None:
            grammar_of(form, make)
    error = found.value
    assert (error.status, error.param) == (400, param) and message in error.message
    assert "\n" not in error.message and len(error.message) < 600


def test_a_grammar_that_cannot_go_on_says_so(model: ServedModel, constraints: Constraints, make: Make) -> None:
    one = constraints.begin(Grammar(grammar_of(("guided_regex", "regex", "[0-9]{2}"), make))).result()
    one.accept(model.text.encode("x")[0])
    assert one.ended and one.error is not None
    with pytest.raises(UsageError, match="nobody"):
        constraints.begin(Grammar("start: nobody")).result()
