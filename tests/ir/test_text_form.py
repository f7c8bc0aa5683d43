"""The text form: printed text parses back to the same text and the same code; text that is not tile IR is refused, quickly."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import campaign, shipped
from tilec.ir.core import VerifyError, attribute_text
from tilec.ir.expr import OPERATORS, Expr, const, sym
from tilec.ir.ops import Constant
from tilec.ir.text.parser import ParseError, parse_expr, parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.text.tokens import tokenize
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.pipelining.staging import stage
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.passes.schedule.simplify.versioning import version
from tilec.target.families import TMA
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

SECONDS = 20.0  # a text of a few thousand characters takes milliseconds; this limit only catches endless loops


def assert_round_trip(text: str) -> None:
    function = parse_function(text)
    verify(function)
    assert print_function(function) == text


@pytest.mark.parametrize("name", (*shipped.NAMES, *shipped.COLLECTIVES))
def test_shipped_kernels_round_trip(name: str) -> None:
    assert_round_trip(print_function(shipped.load(name)))


def first_of_its_form(case: tuple[str, Target]) -> bool:
    """Kernels made of another kernel's steps have texts of the same form."""
    name, target = case
    return name not in shipped.LIKE and (name not in shipped.TENSOR_CORES or target == SM_90A)


@pytest.mark.parametrize(("name", "target"), campaign.chosen(shipped.AROUND, first_of_its_form), ids=shipped.AROUND_IDS)
def test_every_point_of_the_pipeline_round_trips(name: str, target: Target) -> None:
    function = shipped.load(name)
    schedule = choose(function, target)
    if any(loop.copy == TMA for loop in schedule.pipelines):  # staged only after what else its pipeline does first
        schedule = choose(function, target, Overrides(copy="cp_async"))
    canonicalize(function)
    assert_round_trip(print_function(function))
    function.num_warps = schedule.warps
    stage(function, schedule)
    assert_round_trip(print_function(function))
    version(function)
    assert_round_trip(print_function(function))
    assert_round_trip(print_function(shipped.prepared(name, target)))


@pytest.mark.parametrize(("name", "target"), campaign.chosen(shipped.AROUND, first_of_its_form), ids=shipped.AROUND_IDS)
def test_equal_texts_give_equal_code(name: str, target: Target) -> None:
    prepared = shipped.prepared(name, target)
    expected = lower(prepared, target)
    assert lower(parse_function(print_function(prepared)), target) == expected
    reparsed = shipped.prepare_as(name, parse_function(print_function(shipped.load(name))), target)
    assert lower(reparsed, target) == expected


def test_the_texts_show_staging_layouts_and_buffers() -> None:
    text = print_function(prepare(shipped.load("matmul"), SM_120A, Overrides(copy="cp_async")))
    for fragment in (
        "ring<",
        "acquire",
        "async_copy",
        "commit",
        "wait %",
        "shared_load",
        "shared<bf16, [64, 64], stages",
        "<2@1*1 2@0*8",
        "drain",
    ):
        assert fragment in text
    text = print_function(shipped.prepared("matmul", SM_90A))
    for fragment in ("group_mma", "wait_mma", "proxy_fence", "alignment = 1024", "shared<bf16, [64, 64], stages"):
        assert fragment in text


@pytest.mark.campaign
def test_a_dump_parses_back(tmp_path: Path) -> None:
    output = tmp_path / "rms_norm.tir"
    command = [sys.executable, "-m", "tilec", "dump", "rms_norm", "--stage", "tir", "-o", str(output)]
    project = ["--project", str(shipped.ROOT)]
    environment = {"TILEC_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    process = subprocess.run([*command, *project], capture_output=True, text=True, env=environment, timeout=600)
    assert process.returncode == 0, process.stderr
    text = output.read_text()
    assert_round_trip(text)
    assert text == print_function(shipped.load("rms_norm"))


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.integers(-(2**40), 2**40).map(const) | st.sampled_from(["N", "M", "H_2", "pos"]).map(sym)
    operators = st.sampled_from(sorted(OPERATORS))
    return st.recursive(leaves, lambda inner: st.builds(Expr, operators, st.tuples(inner, inner)))


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_expressions_round_trip(expr: Expr) -> None:
    assert parse_expr(str(expr)) == expr


@settings(max_examples=200, deadline=None)
@given(st.floats() | st.integers(-(2**64), 2**64) | st.booleans() | st.text(st.characters(exclude_categories=["Cs"])))
def test_attributes_round_trip(value: float | int | bool | str) -> None:
    text = f"kernel @k() {{ constants {{A = {attribute_text(value)}}} dims [] strides [] grid [1] }}"
    parsed = parse_function(text).constants["A"]
    assert type(parsed) is type(value)
    assert attribute_text(parsed) == attribute_text(value)


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("%0 = unary %1", 12, "`%1` is used before it is defined"),
        ("%0 = plus : i32", 6, "unknown operation `plus`"),
        ("%0 = iota : i33[4]", 13, "unknown dtype `i33`"),
        ("%0 = iota {n = 4} : i32[4]", 6, "`iota` has no attribute `n`"),
        ("%0 = block_id : i32", 6, "`block_id` lacks the attribute `axis`"),
        ("%0 = block_id {axis = true} : i32", 6, "attribute `axis` cannot be True"),
        ("%0, %1 = iota : i32[4]", 10, "2 results have 1 types"),
        ("%x = iota : i32[4]", 1, "`%x` is defined twice"),
        ("%0 = iota : i32[4] $", 20, "unexpected character '$'"),
        ("%0 = constant {value = -true} : bool", 25, "expected a number, found `true`"),
    ],
)
def test_errors_name_their_location(line: str, column: int, words: str) -> None:
    text = "kernel @k(%x: i32) {\nconstants {} dims [] strides []\ngrid [1]\n" + line + "\n}"
    with pytest.raises(ParseError) as caught:
        parse_function(text)
    assert (caught.value.message, caught.value.line, caught.value.column) == (words, 4, column)


def test_missing_syntax_is_named() -> None:
    with pytest.raises(ParseError, match=r"^1:1: expected `kernel`, found the end of the text$"):
        parse_function("")
    with pytest.raises(ParseError, match=r"^2:1: expected `strides`, found `grid`$"):
        parse_function("kernel @k() { constants {} dims [N]\ngrid [N] }")
    with pytest.raises(ParseError, match=r"^2:1: expected the end of the text, found `kernel`$"):
        parse_function("kernel @k() { constants {} dims [N] strides [] grid [N] }\nkernel")


DEEP = [
    "kernel @k() { constants {} dims [] strides [] grid [" + "(" * 5000,
    "kernel @k() { constants {} dims [] strides [] grid [" + "1 + " * 50_000 + "1] }",
    "kernel @k() { constants {} dims [] strides [] grid [" + "min(1, " * 5000,
    "kernel @k() { constants {A = " + "[" * 5000,
    "kernel @k() { constants {A = " + "-" * 5000,
    "kernel @k() { constants {A = " + "9" * 5000,
    "kernel @k() { constants {A = 0x1.8p+1024} dims [] strides [] grid [1] }",
    "kernel @k() { constants {} dims [] strides [] grid [1] " + "if {" * 5000,
    "kernel @k(" + '"' * 5000,
    "kernel @k(" + "%" * 5000,
]


@pytest.mark.parametrize("text", DEEP, ids=lambda text: text[-12:])
def test_deep_and_long_texts_are_refused(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ParseError):
        parse_function(text)
    assert time.process_time() - start < SECONDS


@cache
def seeds() -> tuple[str, ...]:
    """Texts to mutate, before and after staging."""
    plain = [print_function(shipped.load(name)) for name in ("add", "rms_norm", "matmul", "argmax_reduce")]
    return (*plain, print_function(shipped.prepared("matmul", SM_90A)), print_function(shipped.prepared("add", SM_90A)))


@cache
def vocabulary() -> tuple[str, ...]:
    tokens = {token.text for text in seeds() for token in tokenize(text) if token.kind != "text"}
    return (*sorted(tokens), "-", "\n", '"', "%", "0", "-1", "99999999999999999999", "nan", "none", "true", "/", "\\", "é", "٣")


INTERCHANGEABLE = (r"%[0-9]+", r"(?<![\w%])[0-9]+", r"\b(?:bf16|f16|f32|i32|bool)\b", r'"[a-z]+"')


def mutated(seed: int) -> str:
    """One of the texts after a few random edits: any word for any other, or a number, value, dtype or kind for another one."""
    source = random.Random(seed)
    text = source.choice(seeds())
    if seed % 2:
        for _ in range(source.randint(1, 3)):
            matches = list(re.finditer(source.choice(INTERCHANGEABLE), text))
            match, other = source.choice(matches), source.choice(matches)
            text = text[: match.start()] + other.group() + text[match.end() :]
        return text
    tokens = text.split(" ")
    for _ in range(source.randint(1, 4)):
        index, other = source.randrange(len(tokens)), source.randrange(len(tokens))
        match source.randrange(5):
            case 0:
                del tokens[index]
            case 1:
                tokens[index] = source.choice(vocabulary())
            case 2:
                tokens.insert(index, source.choice(vocabulary()))
            case 3:
                tokens[index], tokens[other] = tokens[other], tokens[index]
            case _:
                tokens[index:index] = tokens[index : index + source.randrange(30)]
    return " ".join(tokens)


def classify(text: str) -> str:
    """The outcome for a text; anything else is an exception or a timeout."""
    start = time.process_time()
    try:
        function = parse_function(text)
        printed = print_function(function)
        assert print_function(parse_function(printed)) == printed
        verify(function)
    except ParseError as error:
        assert 1 <= error.line <= text.count("\n") + 1
        return "no tile IR"
    except VerifyError:
        return "broken"
    finally:
        assert time.process_time() - start < SECONDS
    return "fine"


@pytest.mark.parametrize(("first", "count"), campaign.first(1, [(0, 100), (100, 600)]))
def test_mutated_texts_are_classified(first: int, count: int) -> None:
    outcomes = [classify(mutated(seed)) for seed in range(first, first + count)]
    # All three outcomes must be common, or the mutations would not test one of the two checks.
    assert min(outcomes.count(outcome) for outcome in ("no tile IR", "broken", "fine")) > count // 30


@pytest.mark.campaign
@settings(max_examples=150, deadline=None)
@given(st.text() | st.lists(st.sampled_from(vocabulary())).map(" ".join))
def test_random_texts_are_refused(text: str) -> None:
    assert classify(text) == "no tile IR"


def test_values_lose_their_names_and_keep_their_types() -> None:
    function = shipped.load("add")
    parsed = parse_function(print_function(function))
    ops = list(zip(function.body.walk(), parsed.body.walk(), strict=True))
    assert all(type(a) is type(b) and [v.type for v in a.results] == [v.type for v in b.results] for a, b in ops)
    assert all(a.attributes() == b.attributes() for a, b in ops)
    assert any(isinstance(a, Constant) for a, _ in ops)
    assert all(not value.name for _, b in ops for value in b.results)


@pytest.mark.parametrize("name", ["matmul", "flash_attention"])
def test_a_function_in_a_traceback_is_no_longer_than_a_few_texts(name: str) -> None:
    """pytest prints the arguments of each frame: values that printed the operations that own them would print for hours."""
    function = shipped.prepared(name, SM_90A)
    assert len(repr(function)) < 20 * len(print_function(function))
