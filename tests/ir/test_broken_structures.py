"""What the verifier refuses of functions that no text can say, and where it runs."""

from __future__ import annotations

import pytest

from tests import shipped
from tilec.ir import ops
from tilec.ir.core import Function, Parameter, Value, VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.types import TileType, i32
from tilec.ir.verifier import verify
from tilec.pipeline import Request, Work, stage_named


def small_function() -> Function:
    """Two operations and a loop, to break in ways that no text can."""
    return parse_function(
        "kernel @k(%n: i32) { constants {} dims [] strides [] grid [1]\n"
        '%0 = unary %n {kind = "neg"} : i32\n%1 = unary %0 {kind = "abs"} : i32\n'
        '%2 = for %0, %n, %n, %n {variable = "i"} : i32 {\n^(%3: i32, %4: i32)\n'
        '%5 = unary %4 {kind = "neg"} : i32\nyield %5\n}\n}'
    )


def test_a_use_before_its_definition() -> None:
    function = small_function()
    function.body.ops[:2] = function.body.ops[1::-1]
    with pytest.raises(VerifyError, match="operand i32 is used where it is not defined"):
        verify(function)


def test_a_use_outside_of_the_region() -> None:
    function = small_function()
    inner = function.body.ops[2].regions[0].ops[0].result
    use = ops.Unary(kind="neg", operands=[inner])
    use.define(inner.type)
    function.body.ops.append(use)
    with pytest.raises(VerifyError, match="operand i32 is used where it is not defined"):
        verify(function)


def test_a_result_of_another_operation() -> None:
    function = small_function()
    function.body.ops[1].results = function.body.ops[0].results
    with pytest.raises(VerifyError, match="a result belongs to another operation"):
        verify(function)


def test_parameters_that_are_not_the_arguments() -> None:
    function = small_function()
    function.body.arguments = [Value(TileType(i32))]
    with pytest.raises(VerifyError, match="the body's arguments are not the parameters' values"):
        verify(function)


def test_two_parameters_of_one_name() -> None:
    function = small_function()
    function.parameters.append(Parameter("n", function.body.add_argument(TileType(i32), "n")))
    with pytest.raises(VerifyError, match="two parameters or dims share a name"):
        verify(function)


def test_the_location_in_the_source_is_named() -> None:
    function = shipped.load("add")
    store = next(op for op in function.body.walk() if isinstance(op, ops.Store))
    store.operands.pop()
    with pytest.raises(VerifyError, match=r"add\.py:\d+:\d+: store: one offset and one extent per tensor axis"):
        verify(function)


def test_the_first_stage_verifies_the_function_of_the_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    function = shipped.load("add")
    function.grid = ()
    monkeypatch.setattr("tilec.frontend.load_kernel", lambda *_, **__: function)
    work = Work(Request("add", "add.py", ".", {}, {}, {}, {}), None)
    with pytest.raises(VerifyError, match="a grid has 1 to 3 extents"):
        stage_named("tir").run(work)
