"""Planted mistakes in what prints: each rule of the verifiers, the lowered text and the emulator refuses one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.programs.machines import manifest
from tests.words.printing_kernels import compiled, interpreted, kernel, loaded, vector
from tilec.audit import emulation
from tilec.emulator import UnsupportedPtx, emulate
from tilec.ir.core import Block, Function, Op, VerifyError
from tilec.ir.ops import Print, prints
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.sync_ops import Barrier, Roles
from tilec.ir.printed_text import difference, pieces
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify
from tilec.lowering import lower, total
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import print_check
from tilec.passes.schedule.checks.verify import verify as verify_schedule
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TWO = kernel(
    'tl.grid(1)\nv = tl.load(x, 0, shape=(64,))\ntl.print("1 {} {}", v, 7)\ntl.print("2 {}", v, where=v > 0.0)\n'
    "tl.store(out, 0, v)", "x: tl.In[tl.f32, 64], out: tl.Out[tl.f32, 64]",
)  # fmt: skip


def first(function: Function) -> Print:
    return prints(function)[0]


WRONG: list[tuple[Callable[[Print], object], str]] = [
    (lambda op: setattr(op, "text", "1 {}"), "one value for each field"),
    (lambda op: setattr(op, "text", "1 {} {} {}"), "one value for each field"),
    (lambda op: setattr(op, "text", "{ {} {}"), "a brace without a partner"),
    (lambda op: setattr(op, "text", "{}\n{}"), "one short line"),
    (lambda op: setattr(op, "axes", 0), "one value for each field"),
    (lambda op: op.operands.__setitem__(0, op.operands[1]), "block indices are i32 scalars"),
    (lambda op: op.operands.__setitem__(1, op.operands[0]), "the values have one shape"),
    (lambda op: (setattr(op, "masked", True), setattr(op, "text", "{}")), "the condition is bool"),
]


@pytest.mark.parametrize(("wrong", "rule"), WRONG)
def test_the_verifier_refuses_other_operands(wrong: Callable[[Print], object], rule: str) -> None:
    function = loaded(TWO)
    verify(function)
    wrong(first(function))
    with pytest.raises(VerifyError, match=rule):
        verify(function)


def test_its_text_is_read_back() -> None:
    text = print_function(loaded(TWO))
    assert "print %0, %2, %" in text and print_function(parse_function(text)) == text


def test_a_print_comes_after_the_grid_dependency_wait() -> None:
    prepared = prepare(loaded(TWO), SM_90A, Overrides(warps=2))
    ops = prepared.body.ops
    wait = next(op for op in ops if isinstance(op, DependencyWait))
    ops.remove(wait)
    ops.insert(ops.index(first(prepared)) + 1, wait)
    with pytest.raises(VerifyError, match="before the grid dependency wait"):
        verify(prepared)


def remove(function: Function, op: Op) -> None:
    for block in (function.body, *(region for one in function.body.walk() for region in one.regions)):
        block.ops = [one for one in block.ops if one is not op]


def test_a_lost_print_is_found() -> None:
    written = print_check.written(loaded(TWO))
    prepared = prepare(loaded(TWO), SM_90A, Overrides(warps=2))
    print_check.check(prepared, written)
    remove(prepared, first(prepared))
    with pytest.raises(VerifyError, match=r"'1 \{\} \{\}' of .* is lost"):
        print_check.check(prepared, written)


def test_a_new_print_is_found() -> None:
    prepared = prepare(loaded(TWO), SM_90A, Overrides(warps=2))
    written = print_check.written(prepared)
    first(prepared).text = "3 {} {}"
    with pytest.raises(VerifyError, match="is no print of the kernel"):
        print_check.check(prepared, written)


def in_roles(function: Function, regions: list[Block], alone: tuple[bool, bool]) -> None:
    function.body.ops = [
        Roles(names=("a", "b"), warps=(1, 1), registers=(0, 0), alone=alone, regions=regions)
    ]  # fmt: skip


def test_a_print_in_two_roles_is_found() -> None:
    prepared = prepare(loaded(TWO), SM_90A, Overrides(warps=2))
    written, one = print_check.written(prepared), first(prepared)
    copy = replace(one, operands=list(one.operands))
    others = [op for op in prepared.body.ops if op is not one]
    in_roles(prepared, [Block(ops=[one, *others]), Block(ops=[copy])], (False, False))
    with pytest.raises(VerifyError, match="is in two roles"):
        print_check.check(prepared, written)


def test_a_print_by_a_single_thread_is_found() -> None:
    prepared = prepare(loaded(kernel('tl.grid(N)\nv = tl.load(x, tl.bid(0))\ntl.print("here")\ntl.store(out, tl.bid(0), v)')),
                       SM_90A, Overrides(warps=2))  # fmt: skip
    one = first(prepared)
    body = [op for op in prepared.body.ops if op is not one]
    index = one.operands[0].owner
    assert isinstance(index, Op)
    prepared.body.ops = []
    in_roles(prepared, [Block(ops=[op for op in body if op is not index]), Block(ops=[one])], (False, True))
    prepared.body.ops.insert(0, index)
    with pytest.raises(VerifyError):
        verify_schedule(prepared, SM_90A)


def test_a_missing_barrier_between_two_prints_is_found() -> None:
    prepared = prepare(loaded(TWO), SM_90A, Overrides(warps=2))
    verify_schedule(prepared, SM_90A)
    barriers = [op for op in prepared.body.walk() if isinstance(op, Barrier)]
    assert barriers
    for op in barriers:
        remove(prepared, op)
    with pytest.raises(VerifyError, match=r"no barrier of the block's threads between print .* and print"):
        verify_schedule(prepared, SM_90A)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("@vprintf(%", "@printf(%", "the only function that it calls is `vprintf`"),
        ("(!llvm.ptr, !llvm.ptr) -> i32\nllvm.mlir", "(!llvm.ptr, ...) -> i32\nllvm.mlir", "attributes that nothing justifies"),
        ("internal constant", "internal thread_local", "must not say `thread_local`"),
        ("llvm.alloca", "llvm.alloca inalloca", "must not say `inalloca`"),
    ],
)
def test_lowered_code_calls_nothing_else(old: str, new: str, rule: str) -> None:
    mlir = lower(prepare(loaded(TWO), SM_90A, Overrides(warps=2)), SM_90A).mlir
    total.check(mlir)
    assert old in mlir
    with pytest.raises(VerifyError, match=rule):
        total.check(mlir.replace(old, new))


def spoiled(old: str, new: str) -> Any:
    ptx, launched = compiled(TWO, SM_90A, Overrides(warps=2))
    assert old in ptx
    return emulate(ptx.replace(old, new), launched, vector(64), {})


def test_the_emulator_refuses_other_functions() -> None:
    with pytest.raises(UnsupportedPtx, match="the only function that can be called is vprintf"):
        spoiled("(retval0), vprintf, (", "(retval0), printf, (")


def test_an_argument_that_nobody_wrote_is_a_fault() -> None:
    ptx, _ = compiled(TWO, SM_90A, Overrides(warps=2))
    store = next(line for line in ptx.split("\n") if "st.local" in line)
    report = spoiled(store + "\n", "\n")
    assert [fault.kind for fault in report.faults] == ["uninitialised"]
    assert "an argument of vprintf is not defined" in str(report.faults[0])


def test_a_text_without_an_end_is_a_fault() -> None:
    ptx, _ = compiled(TWO, SM_90A, Overrides(warps=2))
    name, size = next(line for line in ptx.split("\n") if "printed$0[" in line).split("printed$0[")[1].split("] = ")
    report = spoiled(f"printed$0[{name}] = {size}", f"printed$0[{int(name) - 1}] = {size}")
    assert any(fault.kind == "bounds" and "is no text" in fault.message for fault in report.faults)


def audited(text: str, ptx: str) -> dict[str, Any]:
    """The audit's emulation of PTX that claims to be of a kernel."""
    function = loaded(text)
    schedule = choose(loaded(text), SM_90A, Overrides(warps=2))
    launched = manifest(loaded(text), lower(prepare(loaded(text), SM_90A, schedule), SM_90A), SM_90A, schedule)
    return emulation.emulated(launched, function, ptx, launches=1, seeds=1)


def test_the_audit_compares_what_is_printed() -> None:
    ptx, _ = compiled(TWO, SM_90A, Overrides(warps=2))
    right = audited(TWO, ptx)
    assert right["status"] == "clean" and right["launches"][0]["differs"] == []
    others = {
        "another text": TWO.replace('"1 {} {}"', '"1 {}, {}"'),
        "another value": TWO.replace("v, 7)", "v, 8)"),
        "fewer lines": TWO.replace("v > 0.0", "v > 0.5"),
    }
    for name, text in others.items():
        (reported,) = audited(TWO, compiled(text, SM_90A, Overrides(warps=2))[0])["launches"][0]["differs"]
        assert reported.startswith("it prints "), name


def test_lines_differ_by_more_than_rounding() -> None:
    lines = interpreted(TWO, {"x": np.linspace(-3, 3, 64, dtype=np.float32), "out": np.zeros(64, np.float32)})
    assert difference(lines, lines[::-1][:64] + lines[:-64], 0.05) != "" and difference(lines, lines, 0.0) == ""
    assert difference(["bid (0): 1.5"], ["bid (0): 1.5000001"], 1e-6) == ""
    assert difference(["bid (0): 1.5"], ["bid (0): 1.6"], 0.05) == "`bid (0): 1.6` instead of `bid (0): 1.5`"
    assert difference(["bid (0): 100"], ["bid (0): 101"], 0.05)
    assert difference(["bid (0): nan"], ["bid (0): 1.0"], 0.05) and difference(["bid (0): inf"], ["bid (0): -inf"], 0.05)
    assert not difference(["bid (0): a", "bid (1): b"], ["bid (1): b", "bid (0): a"], 0.0)
    assert difference(["bid (0): a", "bid (0): b"], ["bid (0): b", "bid (0): a"], 0.0)


def test_fields_of_a_text() -> None:
    assert pieces("a {} b {{{}}} c") == ["a ", " b {", "} c"] and pieces("") == [""] and pieces("{}{}") == ["", "", ""]
    for wrong in ("{", "}", "{x}", "a {0}", "{}}"):
        with pytest.raises(ValueError):
            pieces(wrong)
