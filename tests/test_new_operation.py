"""A new operation needs five registrations; all other code learns of it from its class.

Two are added here as CONTRIBUTING describes: one that computes element by element, and one that reads a tensor. Each has its
class, its interpreter function, its lowering rule, its name among the words, and the builder for calls of that word; no other
code knows them. They pass through the front end, the text form, the verifier, the analyses, the prover, the layouts, the
interpreter and lowering like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import arithmetic, load_kernel, module
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term
from tilec.frontend.vocabulary import WORDS, word
from tilec.interpreter import run
from tilec.interpreter.arithmetic import PURE
from tilec.interpreter.memory import ACCESSES, load
from tilec.ir.core import OPS, Effect, Function, Op, Value, VerifyError
from tilec.ir.facts.range_facts import Range, of_dtype
from tilec.ir.facts.range_facts import arithmetic as range_of
from tilec.ir.facts.touches import touches
from tilec.ir.ops import Load, ReadOp
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import TileType, i32
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.lowering.arithmetic import operands_of
from tilec.lowering.context import Context
from tilec.lowering.memory import lower_load
from tilec.lowering.rules import RULES, lowers
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

sys.path.insert(0, str(Path(__file__).parent / "lowering"))
from block_machine import launch

KERNEL = '''"""Words of their own."""
import tilec
from tilec import In, InOut, Out, arange, bid, f32, grid, i32, load, multiply_add, negated_load, store


@tilec.kernel
'''
COMPUTES = """def k(x: In[f32, 64], y: In[f32, 64], out: Out[f32, 64]):
    grid(1)
    a = load(x, 0, shape=(64,))
    store(out, 0, multiply_add(a, load(y, 0, shape=(64,)), a))
"""
COUNTS = """def k(out: Out[i32, 64]):
    grid(1)
    store(out, 0, multiply_add(arange(64), 3, 7))
"""
READS = """def k(x: InOut[f32, 192]):
    grid(3)
    store(x, bid(0), negated_load(x, bid(0) * 64))
"""


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, type[Op]]]:
    """Registers the two in their five places, and removes them afterwards."""
    tables: tuple[dict[Any, Any], ...] = (OPS, PURE, ACCESSES, RULES, WORDS)
    before = [dict(table) for table in tables]

    # 1. The classes.
    @dataclass(eq=False, kw_only=True)
    class MultiplyAdd(Op, opcode="multiply_add"):
        num_operands = 3
        elementwise = True

        def verify(self) -> None:
            self.require(all(value.type == self.result.type for value in self.operands), "operand and result types differ")

    @dataclass(eq=False, kw_only=True)
    class NegatedLoad(ReadOp, opcode="negated_load", effect=Effect.READ):
        pad: float | None = None
        unsafe: int | None = None

    def plain(op: Op, pad: float | None) -> Load:
        return Load(operands=op.operands, results=op.results, pad=pad, vector=op.result.tile.dtype.bytes)

    # 2. Their interpreter functions.
    PURE[MultiplyAdd] = lambda _, a, b, c: a * b + c
    ACCESSES[NegatedLoad] = lambda memory, op: -load(memory, plain(op, op.pad))

    # 3. Their rules.
    @lowers(MultiplyAdd)
    def lower_multiply_add(context: Context, op: Op) -> None:
        makes = context.float_op if op.result.tile.dtype.is_float else context.integer
        multiply, add = ("fmul", "fadd") if op.result.tile.dtype.is_float else ("mul", "add")
        context.assign(
            op.result, [makes(add, makes(multiply, a, b), c) for a, b, c in zip(*operands_of(context, op), strict=True)]
        )

    @lowers(NegatedLoad)
    def lower_negated_load(context: Context, op: Any) -> None:
        lower_load(context, plain(op, op.pad))
        context.assign(op.result, [context.negated(value) for value in context.registers(op.result)])

    # 4. Their names, as in `__all__` of `tilec/language/words.py`.
    monkeypatch.setattr(module, "WORDS", module.WORDS | {"multiply_add", "negated_load"})

    # 5. The builders for calls of them.
    @word("multiply_add")
    def multiply_add(call: Call) -> Term:
        a, b, c = call.bind("a b c")
        values: list[Value] = []
        for term in (b, c):
            first, other = arithmetic.unify(call.emitter, a, term, call.at)
            values = [first, *values[1:], call.emitter.broadcast(other, first.tile.shape, call.at)]
        return call.emitter.emit(MultiplyAdd(operands=values), call.at, values[0].tile)[0]

    @word("negated_load")
    def negated_load(call: Call) -> Term:
        tensor, offset = call.bind("tensor offset")
        assert isinstance(tensor, Value)
        operands = [tensor, call.emitter.value(offset, call.at)]
        return call.emitter.emit(NegatedLoad(operands=operands), call.at, TileType(tensor.tensor.dtype, (64,)))[0]

    yield {"multiply_add": MultiplyAdd, "negated_load": NegatedLoad}
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


def built(folder: Path, body: str) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL + body)
    return load_kernel(path, {}, root=folder)


def only(function: Function, kind: type[Op]) -> Op:
    (op,) = [op for op in function.body.walk() if type(op) is kind]
    return op


@pytest.mark.parametrize("body", [COMPUTES, COUNTS, READS])
def test_it_has_a_text_that_is_read_back(operations: dict[str, type[Op]], tmp_path: Path, body: str) -> None:
    text = print_function(built(tmp_path, body))
    assert any(name in text for name in operations)
    verify(parse_function(text))
    assert print_function(parse_function(text)) == text


@pytest.mark.parametrize(
    ("body", "wrong", "rule"),
    [
        (COMPUTES, lambda op: op.operands.pop(), "multiply_add.*2 operands instead of 3"),
        (COMPUTES, lambda op: setattr(op, "results", []), "multiply_add.*0 results"),
        (COUNTS, lambda op: setattr(op.result, "type", TileType(i32, (65,))), "multiply_add.*operand and result types differ"),
        (READS, lambda op: op.operands.reverse(), "negated_load.*operand 0 is i32"),
        (READS, lambda op: op.operands.append(op.operands[1]), "negated_load.*one offset and one extent per tensor axis"),
    ],
)
def test_the_verifier_asks_the_class(
    operations: dict[str, type[Op]], tmp_path: Path, body: str, wrong: Callable[[Op], object], rule: str
) -> None:
    function = built(tmp_path, body)
    verify(function)
    (op,) = [op for op in function.body.walk() if type(op) in operations.values()]
    wrong(op)
    with pytest.raises(VerifyError, match=rule):
        verify(function)


def test_its_range_is_unknown_unless_the_class_says(
    operations: dict[str, type[Op]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = built(tmp_path, COUNTS)
    result = only(function, operations["multiply_add"]).result
    assert value_ranges(function)[result] == of_dtype(i32)

    def hook(op: Op, operands: Sequence[Range]) -> Range | None:
        product = range_of("mul", operands[0], operands[1])
        return range_of("add", product, operands[2]) if product else None

    monkeypatch.setattr(operations["multiply_add"], "result_range", hook)
    assert value_ranges(function)[result] == Range(7, 7 + 3 * 63, 3, 1)


def test_it_keeps_the_layout_of_its_operands(operations: dict[str, type[Op]], tmp_path: Path) -> None:
    prepared = prepare(built(tmp_path, COMPUTES), SM_90A, Overrides(warps=2))
    op = only(prepared, operations["multiply_add"])
    assert op.result.layout is not None
    assert [value.layout for value in op.operands] == [op.result.layout] * 3


def test_it_computes_the_same_in_the_interpreter_and_on_threads(operations: dict[str, type[Op]], tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, y = random.integers(-9, 9, (2, 64)).astype(np.float32)
    for body, inputs, expected in (
        (COMPUTES, {"x": x, "y": y}, x * y + x),
        (COUNTS, {}, (3 * np.arange(64) + 7).astype(np.int32)),
    ):
        function = built(tmp_path, body)
        prove(function)
        interpreted, lowered = np.zeros_like(expected), np.zeros_like(expected)
        run(function, {**inputs, "out": interpreted})
        launch(
            function, lower(prepare(built(tmp_path, body), SM_90A, Overrides(warps=2)), SM_90A), {**inputs, "out": lowered}, {}
        )
        assert (interpreted == expected).all() and (lowered == expected).all()


def test_its_accesses_are_proven_and_ordered(operations: dict[str, type[Op]], tmp_path: Path) -> None:
    function = built(tmp_path, READS)
    found = prove(function)
    assert any("negated_load from `x`" in obligation.subject for obligation in found.obligations)
    with pytest.raises(CompileError) as caught:
        prove(built(tmp_path, READS.replace("negated_load(x, bid(0) * 64)", "negated_load(x, bid(0) * 64 + 1)")))
    assert any(d.code == "E0301" for d in caught.value.diagnostics)

    prepared = prepare(built(tmp_path, READS), SM_90A, Overrides(warps=2))
    op = only(prepared, operations["negated_load"])
    (touch,) = touches(prepared)[op].made
    assert (touch.memory, touch.kind, touch.shape) == (op.operands[0], Effect.READ, (64,))
    assert touch.layout == op.result.layout and touch.offsets == (op.operands[1],)

    values = np.arange(192, dtype=np.float32)
    interpreted, lowered = values.copy(), values.copy()
    run(function, {"x": interpreted})
    launch(function, lower(prepared, SM_90A), {"x": lowered}, {})
    assert (interpreted == -values).all() and (lowered == -values).all()
