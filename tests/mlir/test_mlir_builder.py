"""The builder refuses operands of wrong types when an operation is built, and MLIR accepts its output."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tilec
from tilec.codegen import to_llvm_ir
from tilec.ir.core import VerifyError
from tilec.lowering import total
from tilec.mlir.builder import Builder
from tilec.mlir.module import Argument, kernel_module
from tilec.mlir.types import (
    GLOBAL,
    SHARED,
    SsaValue,
    Type,
    bf16,
    f16,
    f32,
    f64,
    floating,
    i1,
    i8,
    i16,
    i32,
    i64,
    integer,
    structure,
    vector,
)

PACKAGE = Path(tilec.__file__).parent
CHECKERS = ("lowering/total.py", "codegen/legality.py", "codegen/ptx.py")
"""Files that parse code and so name operations: the rule of lowered code, and the gate on LLVM IR."""
OPERATION = re.compile(r"(?<![\w.])(?:!?llvm|nvvm|scf)\.\w")


def value(type: Type, name: str = "x") -> SsaValue:
    return SsaValue(f"%{name}", type)


def module(write: Callable[[Builder, SsaValue, SsaValue], None]) -> str:
    """A kernel with a pointer and an i32."""
    out, pointer, number = Builder(), value(GLOBAL, "p"), value(i32, "n")
    write(out, pointer, number)
    arguments = [Argument(pointer), Argument(number)]
    return kernel_module("k", arguments, out.lines, threads=32, min_blocks=None, alignment=16, printed=out.printed)


MISTAKES: dict[str, Callable[[Builder], object]] = {
    "`add` takes no %x of i32 with %x of i64": lambda out: out.add(value(i32), value(i64)),
    "`mul` takes no %x of f32": lambda out: out.mul(value(f32), value(f32)),
    "`udiv` takes no %x of !llvm.ptr<1>": lambda out: out.integer("udiv", value(GLOBAL), value(GLOBAL)),
    "no constant 300 of i8": lambda out: out.add(value(i8), 300),
    "no constant -129 of i8": lambda out: out.constant(-129, i8),
    "no constant 0 of f32": lambda out: out.constant(0, f32),
    "`icmp` takes no %x of i64 with %x of i32": lambda out: out.compare("ult", value(i64), value(i32)),
    "`icmp` takes no %x of f16 with": lambda out: out.compare("eq", value(f16), value(f16)),
    "`fcmp` takes no %x of i32 with": lambda out: out.float_compare("oeq", value(i32), value(i32)),
    "`select` takes no %x of i32": lambda out: out.select(value(i32), value(f32), value(f32)),
    "`select` takes no %x of f16 with %x of bf16": lambda out: out.select(value(i1), value(f16), value(bf16)),
    "`fadd` takes no %x of f32 with %x of f16": lambda out: out.float_op("fadd", value(f32), value(f16)),
    "`fneg` takes no %x of i32": lambda out: out.negated(value(i32)),
    "`sqrt` takes no %x of i32": lambda out: out.float_function("sqrt", value(i32)),
    "`zext` makes no i8 of %x of i32": lambda out: out.zext(value(i32), i8),
    "`sext` makes no i32 of %x of i32": lambda out: out.extended(value(i32), i32, signed=True),
    "`trunc` makes no i64 of %x of i32": lambda out: out.trunc(value(i32), i64),
    "`fpext` makes no f16 of %x of f32": lambda out: out.fpext(value(f32), f16),
    "`fptrunc` makes no bf16 of %x of f16": lambda out: out.fptrunc(value(f16), bf16),
    "`uitofp` makes no i32 of %x of i32": lambda out: out.integer_to_float(value(i32), i32, signed=False),
    "`bitcast` makes no vector<2xi32> of %x of i32": lambda out: out.bitcast(value(i32), vector(2, i32)),
    "`bitcast` makes no i64 of %x of !llvm.ptr<1>": lambda out: out.bitcast(value(GLOBAL), i64),
    "`ptrtoint` makes no i64 of %x of i32": lambda out: out.address(value(i32), i64),
    "`inttoptr` makes no !llvm.ptr<1> of %x of f32": lambda out: out.pointer_to(value(f32), GLOBAL),
    "`extractelement` takes no %x of i32": lambda out: out.extract(value(i32), 0),
    "`insertelement` takes no %x of vector<2xf16> with %x of bf16": lambda out: out.insert(
        value(bf16), value(vector(2, f16)), 0
    ),
    "3 values of f16 are no vector<2xf16>": lambda out: out.packed([value(f16)] * 3, vector(2, f16)),
    "`getelementptr` takes no %x of i64": lambda out: out.offset(value(i64), 4),
    "`getelementptr` takes no %x of f32": lambda out: out.offset(value(GLOBAL), value(f32)),
    "`load` takes no %x of i64": lambda out: out.load(value(i64), f32),
    "`store` takes no %x of i64": lambda out: out.store(value(f32), value(i64)),
    "`shfl.sync` takes no %x of i64": lambda out: out.shuffle(value(i64), 1),
    "inline PTX with `=r,f` is given (i32) -> (i32)": lambda out: out.inline_ptx("", "=r,f", [value(i32)], [i32]),
    "inline PTX with `=r,f` is given (f32) -> (f32)": lambda out: out.inline_ptx("", "=r,f", [value(f32)], [f32]),
    "inline PTX with `=r,f` is given () ->": lambda out: out.inline_ptx("", "=r,f", [], [i32]),
    "inline PTX with `=f,0` is given (i32) ->": lambda out: out.inline_ptx("", "=f,0", [value(i32)], [f32]),
    "%x of i32 is not a condition": lambda out: out.choose(value(i32), lambda: value(f32), lambda: value(f32)),
    "a branch makes (f32), or (i32)": lambda out: out.choose(value(i1), lambda: value(f32), lambda: value(i32)),
    "a branch makes (f32), or ()": lambda out: out.branch(value(i1), lambda: [value(f32)], list[SsaValue]),
    "a loop is bounded by %x of i64": lambda out: out.loop(value(i64), 8, 1, [], lambda _, carried: carried),
    "a loop carries (f32), and a turn (i32)": lambda out: out.loop(value(i32), 8, 1, [value(f32)], lambda index, _: [index]),
    "no integers of 24 bits": lambda _: integer(24),
    "`f64` is not a float": lambda _: floating("f64"),
    "no vectors of !llvm.ptr<1>": lambda _: vector(2, GLOBAL),
}


@pytest.mark.parametrize("message", MISTAKES, ids=lambda text: text.split(" of %x")[0][:40])
def test_a_wrong_type_is_refused_where_it_is_built(message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        MISTAKES[message](Builder())


def test_types_exist_once() -> None:
    assert vector(2, f16) is vector(2, f16) and vector(2, f16) is not vector(2, bf16)
    assert structure(i32, f32) is structure(i32, f32) and structure(i32, f32) is not structure(f32, i32)
    assert integer(16) is i16 and floating("f16") is f16


def test_operations_with_a_neutral_operand_are_not_written() -> None:
    out, x = Builder(), value(i32)
    assert [out.add(x, 0), out.mul(x, 1), out.shl(x, 0), out.lshr(x, 0), out.udiv(x, 1)] == [x] * 5
    assert out.offset(value(SHARED), 0) == value(SHARED)
    assert not out.lines


def test_a_constant_is_written_once_where_it_is_in_scope() -> None:
    constants: list[SsaValue] = []

    def use_constants(out: Builder) -> SsaValue:
        assert out.constant(7) == constants[0]
        constants.append(out.float_constant(0x3F800000))
        assert out.float_constant(0x3F800000) == constants[-1]
        return constants[-1]

    def write(out: Builder, pointer: SsaValue, number: SsaValue) -> None:
        constants.append(out.constant(7))
        assert out.constant(7) == constants[0] != out.constant(7, i64)
        assert (len(out.lines), out.operations) == (2, 3)
        assert out.zero(vector(2, i32)) != out.zero(vector(4, i32)) == out.zero(vector(4, i32))
        condition = out.compare("slt", number, constants[0])
        selected = out.choose(condition, lambda: use_constants(out), lambda: use_constants(out))
        (result,) = out.loop(constants[0], number, 1, [selected], lambda index, carried: [use_constants(out)])
        with out.where(condition):
            out.store(use_constants(out), pointer)
        out.either(condition, lambda: out.store(use_constants(out), pointer), lambda: out.store(use_constants(out), pointer))
        with out.where(None):
            use_constants(out)
        out.store(result, pointer)
        assert use_constants(out) == constants[-2]  # nothing was emitted since

    text = module(write)
    assert text.count("constant(7 : i32)") == 1
    assert len(set(constants)) == 1 + 7  # a region does not reuse values of another
    assert "define ptx_kernel" in to_llvm_ir(text)


def _every_operation(out: Builder, pointer: SsaValue, number: SsaValue) -> None:
    out.reserve_arguments(24)
    line = out.printed_text('%d "of" %g\n')
    assert out.printed == {'%d "of" %g\n': "printed$0"}
    out.call_vprintf(line, [number, out.fpext(out.float_constant(0x3F800000), f64), out.extended(number, i64, signed=True)])
    wide = out.extended(number, i64, signed=True)
    address = out.offset(pointer, wide)
    shared = out.offset(out.dynamic_shared(), out.special_register("tid.x"))
    number = out.bit_or(out.bit_xor(out.bit_and(number, 7), 3), out.sub(number, out.urem(number, 5)))
    number = out.integer("sdiv", number, number, proven=True)
    low = out.bitcast(out.trunc(number, i16), f16)
    single = out.float_op("fmul", out.fpext(low, f32), out.float_constant(0x7F800000), contract=True)
    single = out.negated(out.float_function("floor", single))
    pair = out.packed([low, out.fptrunc(single, f16)], vector(2, f16))
    number = out.select(out.float_compare("uno", single, single), out.bitcast(pair, i32), out.zext(out.truth(True), i32))
    (nearest,) = out.inline_ptx("cvt.rzi.s32.f32 $0, $1;", "=r,f", [single], [i32])
    words = out.inline_ptx("ld.global.nc.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [address], [i32, i32])
    (best,) = out.intrinsic("maximumnum.f32", [single, out.integer_to_float(words[1], f32, signed=False)], [f32])
    out.instruction("cp.async.ca.shared.global.4", [shared, out.pointer_to(out.address(address, i64), GLOBAL)])
    out.commit_group()
    out.wait_group(0)
    out.barrier()
    out.named_barrier(1, 64)
    condition = out.compare("slt", number, nearest)
    values = out.choose_all(condition, lambda: [best, words[0]], lambda: [out.shuffle(best, 4), words[1]])
    loaded = out.choose(condition, lambda: out.load(address, f32, alignment=4, invariant=True), lambda: values[0])
    chosen = out.branch(condition, lambda: [loaded], lambda: [single])
    assert out.branch(condition, list[SsaValue], list[SsaValue]) == []
    total_, count = out.loop(
        out.constant(0),
        number,
        2,
        [chosen[0], values[1]],
        lambda index, h: [out.float_op("fadd", h[0], loaded), out.add(h[1], index)],
    )
    (final,) = out.loop(out.constant(0), 8, 1, [count], lambda index, h: [out.shl(h[0], 1)])
    assert out.loop(out.constant(0), 8, number, [], lambda index, h: h) == []
    _, final = out.loop_while(
        out.constant(0),
        number,
        out.constant(2),
        [condition, final],
        0,
        lambda index, h: [out.compare("slt", h[1], index), out.add(h[1], 1)],
    )
    with out.where(condition):
        out.store(out.extract(pair, 1), out.offset(pointer, 8), alignment=2)
    with out.where(None):
        out.store(final, pointer)
    out.either(condition, lambda: out.store(total_, shared), lambda: out.store(out.zero(vector(4, i32)), pointer, alignment=16))


def test_every_operation_is_accepted_by_the_rule_and_by_mlir() -> None:
    """Methods that are not called explicitly here are found by name."""
    text = module(_every_operation)
    total.check(text)
    assert "define ptx_kernel void @k(ptr addrspace(1) noalias" in to_llvm_ir(text)
    called = {node.attr for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Attribute)}
    methods = {name for name in dir(Builder) if not name.startswith("_")} - {
        "lines",
        "line",
        "at_line",
        "replicated",
        "converts_f8",
        "multiplies_f8",
    }
    assert not methods - called


@pytest.mark.campaign
def test_only_one_folder_writes_mlir() -> None:
    """Only the builder's modules name an operation, an attribute or a type of MLIR outside of prose."""
    writers: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                writers |= {path.relative_to(PACKAGE).as_posix()} if OPERATION.search(node.value) else set()
    assert writers - set(CHECKERS) == {f"mlir/{name}.py" for name in ("builder", "module", "types", "writer")}
