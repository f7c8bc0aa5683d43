"""Grammars whose compilation takes a deep stack: those within the limits compile in the threads that are for them, others are
refused. Beyond the stack, the process would end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import chat
from in_process import Server

from engine.serving.grammar_depth import LEAST_NUMBER, MOST_LEVELS, MOST_REMAINDERS, MOST_RULES, too_deep

ROOT = Path(__file__).resolve().parents[3]


def chain(rules: int) -> str:
    """A grammar whose rules each have the next one in them."""
    links = "".join(f'r{number}: "a" r{number + 1}\n' for number in range(rules - 2))
    return f'start: r0\n{links}r{rules - 2}: "a"\n'


def references(count: int) -> dict[str, Any]:
    """A schema of `count` objects, each with a property that refers to the next one."""
    links: dict[str, Any] = {
        f"d{number}": {"properties": {"a": {"$ref": f"#/$defs/d{number + 1}"}}} for number in range(count - 1)
    }
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{count - 1}": {"type": "object"}}}


def own(schema: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


def test_what_is_too_deep() -> None:
    rules, levels = f"it has over {MOST_RULES} rules", f"what its schema refers to is nested over {MOST_LEVELS} levels deep"
    assert too_deep(chain(MOST_RULES)) is None and too_deep(chain(MOST_RULES + 1)) == rules
    assert too_deep(json.dumps({"grammars": [{"lark_grammar": chain(MOST_RULES + 1)}]})) == rules
    deep = references(MOST_LEVELS // 3 + 1)
    for text in (own(deep), f"start: %json {json.dumps(deep)}\n"):
        assert too_deep(text) == levels
    assert too_deep(own(references(MOST_LEVELS // 3 - 2))) is None
    assert too_deep(own({"$ref": "#/%24defs/a~1b", "$defs": {"a/b": {"type": "object"}}})) is None
    unknown = {"anyOf": [{"$ref": f"other#{number}"} for number in range(MOST_LEVELS)]}
    assert too_deep(own(unknown)) == levels  # each may be anything of the schema
    assert too_deep(own("[" * 5)) is None and too_deep("{") is None and too_deep("start: %json {\n") is None


NEGATIVE = "it has a number of -2^63 or less"
COMMON = f"the least common multiple of its `multipleOf` is over {MOST_REMAINDERS}"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}, NEGATIVE),
        ({"enum": ["a", [-1e300]]}, NEGATIVE),
        ({"minimum": LEAST_NUMBER}, NEGATIVE),  # the double next to it is -2^63
        ({"minimum": LEAST_NUMBER + 1}, None),
        ({"multipleOf": MOST_REMAINDERS}, None),
        ({"multipleOf": -(MOST_REMAINDERS + 1)}, COMMON),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 1009}]}, COMMON),
        ({"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 1000}}}, None),
        ({"properties": {"a": {"multipleOf": 0.0001}, "b": {"multipleOf": 7}}}, COMMON),
        ({"multipleOf": 10**4000 + 1}, COMMON),
        ({"multipleOf": True, "properties": {"multipleOf": {"multipleOf": 0}}}, None),
    ],
)
def test_numbers_that_ask_for_too_much(schema: Any, why: str | None) -> None:
    for text in (own(schema), f"start: %json {json.dumps(schema)}\n"):
        assert too_deep(text) == why


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "integer", "minimum": -1e300, "exclusiveMaximum": -1e19}},
        {"guided_json": {"type": "integer", "multipleOf": 99999989}},
        {"structured_outputs": {"grammar": chain(MOST_RULES + 1)}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": references(2000)}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_request_for_one_is_refused(speaker: Server, fields: dict[str, Any]) -> None:
    found = chat(speaker, **fields)
    assert (found.status, found.error["param"]) == (400, next(iter(fields))), found.error


LARGEST = """
import json, sys
from engine.serving.constraints import Constraints
from engine.serving.grammar_compiler import Compiler
from engine.serving.grammar_depth import deep_thread
from engine.serving.grammars import grammar_of
from engine.serving.protocol import Grammar
make = Compiler(sys.argv[1], int(sys.argv[2]), [0]).made
for form in json.load(sys.stdin):
    text = deep_thread("text").submit(grammar_of, form, make).result()
    one = Constraints(sys.argv[1], int(sys.argv[2]), [0])
    constraint = one.begin(Grammar(text)).result()
    for _ in range(3):
        constraint.accept(int(constraint.allowed().argmax()))
    assert constraint.error is None
print("done")
"""


def test_the_deepest_ones_fit_the_stack(tiny: Path) -> None:
    """In a process of their own, which an overflow would end."""
    vocabulary = json.loads((tiny / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    forms = [("x", "grammar", chain(MOST_RULES)), ("x", "json", references(MOST_LEVELS // 3 - 2))]
    done = subprocess.run(
        [sys.executable, "-c", LARGEST, str(tiny), str(vocabulary)], input=json.dumps(forms), capture_output=True, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
