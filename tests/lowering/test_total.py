"""Checks of lowered code: an operation that LLVM may treat as poison or undefined is refused, whichever lowering rule emitted
it."""

from __future__ import annotations

import re

import pytest

from tests import shipped
from tests.campaign import chosen
from tilec.ir.core import Access, VerifyError
from tilec.ir.text.parser import parse_function
from tilec.lowering import lower, total
from tilec.passes.prover.aliasing import no_alias_pairs
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A, Target

KERNEL = """kernel @k(%x: in tensor<i32, [N], align 16>, %out: out tensor<i32, [N], align 16>) {
  constants {}
  dims [N]
  strides []
  grid [(N + 63) // 64]
  %0 = block_id {axis = 0} : i32
  %1 = constant {value = 64} : i32
  %2 = binary %0, %1 {kind = "mul"} : i32
  %3 = load %x, %2 {pad = 0x0.0p+0, unsafe = none, vector = 0} : i32[64]
  %4 = binary %3, %3 {kind = "KIND"} : i32[64]
  store %out, %4, %2 {mask = true, unsafe = none, vector = 0}
}
"""


def lowered(kind: str) -> str:
    return lower(prepare(parse_function(KERNEL.replace("KIND", kind)), SM_90A), SM_90A).mlir


def planted(mlir: str, pattern: str, replacement: str) -> str:
    """The text with its first match of a pattern replaced."""
    mutated, count = re.subn(pattern, replacement, mlir, count=1, flags=re.MULTILINE)
    assert count, pattern
    return mutated


@pytest.mark.parametrize("kind", ["add", "floordiv", "mod", "shl", "shr", "min"])
def test_guarded_code_passes(kind: str) -> None:
    total.check(lowered(kind))


@pytest.mark.parametrize(("name", "target"), chosen(shipped.CASES, shipped.of_its_form), ids=shipped.IDS)
def test_shipped_kernels_pass(name: str, target: Target) -> None:
    lower(shipped.prepared(name, target), target)  # `lower` checks its own output


@pytest.mark.parametrize(
    ("kind", "pattern", "replacement", "named"),
    [
        ("add", r"llvm\.add (%\S+), (%\S+) :", r"llvm.add \1, \2 overflow<nsw> :", "`llvm.add` must not say `overflow`"),
        ("add", r"llvm\.mul (%\S+), (%\S+) :", r"llvm.mul \1, \2 overflow<nuw> :", "`llvm.mul` must not say `overflow`"),
        ("add", r"llvm\.getelementptr ", "llvm.getelementptr inbounds ", "`llvm.getelementptr` must not say `inbounds`"),
        ("shr", r"llvm\.lshr ", "llvm.lshr exact ", "`llvm.lshr` must not say `exact`"),
        ("add", r"llvm\.mlir\.zero :", "llvm.mlir.undef :", "`llvm.mlir.undef` is not known"),
        ("add", r"llvm\.mlir\.zero :", "llvm.mlir.poison :", "`llvm.mlir.poison` is not known"),
        ("add", r"= llvm\.add (%\S+), (%\S+) : i32", r"= llvm.freeze \1 : i32", "`llvm.freeze` is not known"),
        ("add", r"= llvm\.add (%\S+), (%\S+) : i64", r"= llvm.fptosi \1 : f32 to i64", "`llvm.fptosi` is not known"),
        ("add", r"llvm\.load (%\S+)", r"llvm.load volatile \1", "`llvm.load` must not say `volatile`"),
        (
            "add",
            r"llvm\.store (%\S+), (%\S+) \{",
            r"llvm.store \1, \2 {nontemporal, ",
            "`llvm.store` must not say `nontemporal`",
        ),
        ("add", r'"ld\.global\.', '"ld.global.cs.', "`ld.global.cs.*` of `llvm.inline_asm` is on no list"),
        ("add", r'llvm\.icmp "\w+"', 'llvm.icmp "samesign"', "`samesign` of `llvm.icmp` is on no list"),
        ("add", r"llvm\.noalias\}", "llvm.noalias, llvm.nonnull}", "promises of an argument"),
        ("add", r"nvvm\.kernel,", "nvvm.kernel, no_unwind,", "attributes that nothing justifies"),
        ("add", r"^.*llvm\.return$", "something else", "is not known|is not an operation"),
    ],
)
def test_planted_faults_are_refused(kind: str, pattern: str, replacement: str, named: str) -> None:
    with pytest.raises(VerifyError, match=named):
        total.check(planted(lowered(kind), pattern, replacement))


FLOATS = """module {
llvm.func @k(%a: f32, %b: i32) attributes {nvvm.kernel, nvvm.reqntid = array<i32: 32>} {
LINE
llvm.return
}
}
"""


@pytest.mark.parametrize(
    "line",
    [
        "%1 = llvm.fadd %a, %a {fastmathFlags = #llvm.fastmath<fast>} : f32",
        "%1 = llvm.fmul %a, %a {fastmathFlags = #llvm.fastmath<nnan>} : f32",
        "%1 = llvm.fdiv %a, %a {fastmathFlags = #llvm.fastmath<contract, ninf>} : f32",
        "%1 = llvm.intr.minnum(%a, %a) : (f32, f32) -> f32",
        "%1 = llvm.fptoui %a : f32 to i32",
        '%1 = llvm.call_intrinsic "llvm.nvvm.redux.sync.add"(%b, %b) : (i32, i32) -> i32',
        "%1 = llvm.sdiv %b, %b : i32",
    ],
)
def test_single_lines_are_refused(line: str) -> None:
    total.check(FLOATS.replace("LINE", "%1 = llvm.fadd %a, %a {fastmathFlags = #llvm.fastmath<contract>} : f32"))
    with pytest.raises(VerifyError):
        total.check(FLOATS.replace("LINE", line))


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ("%1 = llvm.fadd %a, %a : f32", "%2 = llvm.fadd %a, %a : f64"),
        ("%1 = llvm.bitcast %a : f32 to i32", "%2 = llvm.bitcast %a : f32 to f8"),
        ("%1 = llvm.load %a {alignment = 4 : i64} : !llvm.ptr<1> -> i32",
         "%2 = llvm.load %a {alignment = 4 : i64} : !llvm.ptr<5> -> i32"),
        ('%1 = llvm.call_intrinsic "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3"(%a) : (i32) -> i32',
         '%2 = llvm.call_intrinsic "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x3.b16.p3"(%a) : (i32) -> i32'),
    ],
)  # fmt: skip
def test_a_number_that_is_no_name_is_read_on_every_line(allowed: str, refused: str) -> None:
    """A line that equals an accepted one except for a digit of its type or flag must be checked anew."""
    total.check(FLOATS.replace("LINE", allowed))
    with pytest.raises(VerifyError):
        total.check(FLOATS.replace("LINE", f"{allowed}\n{refused}"))


def module_with_right_operand(kind: str, *before: str, mark: str = "") -> str:
    """A division or shift of `%b` by `%d`."""
    return FLOATS.replace("LINE", "\n".join([*before, f"%9 = llvm.{kind} %b, %d{mark} : i32"]).replace("%d", "%8"))


def constant(name: str, value: int) -> str:
    return f"{name} = llvm.mlir.constant({value} : i32) : i32"


@pytest.mark.parametrize(
    ("kind", "value", "allowed"),
    [
        ("udiv", 3, True), ("udiv", 0, False), ("urem", -1, True), ("sdiv", -2, True), ("sdiv", -1, False), ("srem", 0, False),
        ("srem", -1, False), ("shl", 31, True), ("shl", 32, False), ("lshr", -1, False), ("ashr", 0, True),
    ],
)  # fmt: skip
def test_constants_on_the_right(kind: str, value: int, allowed: bool) -> None:
    text = module_with_right_operand(kind, constant("%8", value))
    if allowed:
        total.check(text)
        return
    with pytest.raises(VerifyError, match=f"right operand of `llvm.{kind}`"):
        total.check(text)


UNSIGNED = [constant("%1", 0), constant("%2", 1), '%3 = llvm.icmp "eq" %b, %1 : i32', "%8 = llvm.select %3, %2, %b : i1, i32"]
SIGNED = [constant("%1", 2), constant("%2", 1), "%4 = llvm.add %b, %2 : i32", '%3 = llvm.icmp "ult" %4, %1 : i32',
          "%8 = llvm.select %3, %2, %b : i1, i32"]  # fmt: skip
AMOUNT = [constant("%1", 32), constant("%2", 0), '%3 = llvm.icmp "ult" %b, %1 : i32', "%8 = llvm.select %3, %b, %2 : i1, i32"]


@pytest.mark.parametrize(("kind", "guard"), [("udiv", UNSIGNED), ("srem", SIGNED), ("shl", AMOUNT)])
def test_guards_must_fit(kind: str, guard: list[str]) -> None:
    total.check(module_with_right_operand(kind, *guard))
    total.check(module_with_right_operand(kind, mark=" {tilec.proven}"))
    for other_kind in {"udiv", "srem", "shl"} - {kind}:
        if (kind, other_kind) != ("srem", "udiv"):
            with pytest.raises(VerifyError):
                total.check(module_with_right_operand(other_kind, *guard))
    for number, line in enumerate(guard):
        faults = [line.replace("constant(", "constant(7"), line.replace('"eq"', '"ne"').replace('"ult"', '"slt"')]
        faults.append(re.sub(r"select (%\d), (%\w), (%\w)", r"select \1, \3, \2", line))
        for fault in faults:
            if fault != line and not (kind != "shl" and fault == constant("%2", 71)):  # any divisor except 0 and -1 is safe
                with pytest.raises(VerifyError):
                    total.check(module_with_right_operand(kind, *guard[:number], fault, *guard[number + 1 :]))


@pytest.mark.parametrize("name", (*shipped.NAMES, *shipped.COLLECTIVES))
def test_noalias_is_what_the_contract_enforces(name: str) -> None:
    """Every pointer has `noalias`: of any two tensors, either both are only read, or the launch contract keeps them
    disjoint."""
    function = shipped.load(name)
    pairs = {frozenset(pair) for pair in no_alias_pairs(function)}
    tensors = [parameter for parameter in function.parameters if parameter.access is not None]
    for left in tensors:
        for other in tensors:
            if left is not other and not left.access is other.access is Access.IN:
                assert frozenset((left.name, other.name)) in pairs
    signature = next(line for line in lower(shipped.prepared(name, SM_90A), SM_90A).mlir.splitlines() if "llvm.func" in line)
    for parameter in tensors:
        promise = "llvm.noalias, llvm.readonly" if parameter.access is Access.IN else "llvm.noalias"
        assert f"%{parameter.name}: !llvm.ptr<1> {{{promise}}}" in signature
