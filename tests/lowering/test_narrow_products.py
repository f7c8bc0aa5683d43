"""Products of tf32 and of 8-bit operands, by `mma.sync`, `wgmma` and `tcgen05.mma`: bit-identical to the interpreter where sums
are exact, in the PTX emulator and on the block machine; within the interpreter's own error bound where they are not; the
instructions that machine code has; what schedules, checks and notes refuse or say; planted mistakes."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from block_machine import launch

from tests import campaign
from tests.clean import check_clean
from tests.narrow_products import Case, Made, differs_by_more, emulated, function_of, interpreted, made, operands
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.ops.staging_ops import GroupMma
from tilec.ir.ops.tmem_ops import TmemMma
from tilec.ir.types import DTYPES, SharedType
from tilec.passes.schedule.checks import verify
from tilec.passes.schedule.notes import notes
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_100A, SM_120A, TARGETS, Target

PAIRS = (
    ("i8", "i8"),
    ("u8", "i8"),
    ("i8", "u8"),
    ("f8e4m3", "f8e4m3"),
    ("f8e4m3", "f8e5m2"),
    ("f8e5m2", "f8e4m3"),
    ("f32", "f32"),
)
FED = (("copy", "tma"),)
OLDER = tuple(target for target in TARGETS if target not in MAIN_TARGETS)


def random_case(number: int) -> tuple[Case, Target, tuple[int, int, int]]:
    """A product, a target and extents."""
    r = random.Random(f"narrow product {number}")
    left, right = PAIRS[number % len(PAIRS)]
    target = MAIN_TARGETS[number // len(PAIRS) % 3] if number % 4 else r.choice(TARGETS)
    step = 32 // DTYPES[left].bytes
    tile = (r.choice((16, 32, 64, 128)), r.choice((16, 32, 64, 80)), step * r.choice((1, 2, 3, 4)))
    along_k = (r.random() < 0.7, r.random() < 0.7)
    wanted: tuple[tuple[str, Any], ...] = ()
    if r.random() < 0.4 and target in MAIN_TARGETS:  # operands in rows of 128 bytes, of a shape that a producer can feed
        tile, along_k = (r.choice((64, 128)), r.choice((32, 64, 96)), 4 * step), (True, True)
        wanted = FED
    extents = tuple(16 * r.choice((1, 3, 5, 9)) for _ in range(3))
    return Case(left, right, tile, along_k, wanted), target, (extents[0], extents[1], extents[2])


def check(case: Case, target: Target, extents: tuple[int, int, int], seed: int = 0) -> Made:
    """The emulator finds nothing, and its result is the interpreter's, of operands whose sums are exact."""
    kernel, arrays = made(case, target), operands(case, extents, seed)
    report, found = emulated(kernel, arrays, seed=seed)
    check_clean(report)
    np.testing.assert_array_equal(found, interpreted(case, arrays))
    return kernel


@pytest.mark.parametrize("number", campaign.first(21, range(210)))
def test_a_random_product_emulates_as_it_is_interpreted(number: int) -> None:
    case, target, extents = random_case(number)
    check(case, target, extents, number)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_lowered_code_computes_the_product(left: str, right: str) -> None:
    """On a machine that shares nothing with the emulator, by `mma.sync`, and by `wgmma` where it has it."""
    step = 32 // DTYPES[left].bytes
    for tile, target, along_k in (
        ((32, 16, 2 * step), SM_120A, (True, True)), ((32, 16, 2 * step), SM_120A, (False, False)),
        ((32, 16, 2 * step), SM_90A, (True, False)), ((64, 32, 4 * step), SM_90A, (True, True)),
    ):  # fmt: skip
        case = Case(left, right, tile, along_k)
        kernel, arrays = made(case, target), operands(case, (48, 32, 6 * step), 3)
        assert ("wgmma.mma_async" in kernel.ptx) == (tile[0] == 64 and left != "f32")
        expected = interpreted(case, arrays)
        launch(function_of(case), kernel.lowered, arrays, {"M": 48, "N": 32, "K": 6 * step})
        np.testing.assert_array_equal(arrays["out"], expected)


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
@pytest.mark.parametrize(("left", "right"), [("f32", "f32"), ("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e5m2")])
def test_inexact_sums_are_within_the_interpreters_bound(left: str, right: str, target: Target) -> None:
    case = Case(left, right, (64, 32, 4 * 32 // DTYPES[left].bytes))
    arrays: Any = operands(case, (64, 48, 160), 5)
    scale: Any = np.random.default_rng(6)
    for name in ("a", "b"):
        old: Any = arrays[name]
        arrays[name] = scale.normal(size=old.shape).astype(old.dtype)
    report, found = emulated(made(case, target), arrays)
    check_clean(report)
    a, b = arrays["a"], arrays["b"]
    exact: Any = a.astype(np.float64) @ b.astype(np.float64).T
    assert (found != exact).any(), "these sums are rounded"
    assert not differs_by_more(case, arrays, found)


def test_operands_of_f32_are_rounded_to_the_nearest_tf32() -> None:
    """Truncation, which the instruction would do, is another result; a planted `mov` instead of the conversion does it."""
    case = Case("f32", "f32", (16, 16, 8))
    arrays = operands(case, (16, 16, 16), 0)
    arrays["a"][:] = np.float32(1 + 2.0**-11)  # halfway between two numbers of tf32: away from zero
    arrays["b"][:] = np.float32(1 - 2.0**-20)
    kernel = made(case, SM_120A)
    _, found = emulated(kernel, arrays)
    np.testing.assert_array_equal(found, np.float32(16 * (1 + 2.0**-10)))
    np.testing.assert_array_equal(interpreted(case, arrays), found)
    planted, count = re.subn(r"cvt\.rna\.tf32\.f32", "mov.b32", kernel.ptx)
    _, wrong = emulated(kernel, arrays, planted)
    assert count and (wrong < found).all()


def test_sums_of_integers_wrap() -> None:
    case = Case("i8", "i8", (16, 16, 32))
    text = case.text().replace("zeros((16, 16), i32)", "full((16, 16), 2147483647, i32)").replace("zeros", "full", 1)
    other = Case("i8", "i8", (16, 16, 32), source=text)
    arrays = operands(other, (16, 16, 16), 1)
    for target in MAIN_TARGETS:
        _, found = emulated(made(other, target), arrays)
        exact = arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64).T + 2**31 - 1
        assert (exact > 2**31 - 1).any()
        np.testing.assert_array_equal(found, exact.astype(np.int32))
        np.testing.assert_array_equal(interpreted(other, arrays), found)


MISTAKES = [
    (
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
        SM_120A,
        "i8",
        "u8",
        (),
    ),
    ("m16n8k32.row.col.f32.e4m3.e5m2", "m16n8k32.row.col.f32.e5m2.e4m3", SM_120A, "f8e4m3", "f8e5m2", ()),
    ("k32.s32.u8.s8", "k32.s32.s8.s8", SM_90A, "u8", "i8", ()),
    ("k32.f32.e4m3.e5m2", "k32.f32.e5m2.e4m3", SM_90A, "f8e4m3", "f8e5m2", ()),
    ("kind::f8f6f4", "kind::i8", SM_100A, "f8e4m3", "f8e4m3", FED),
]


@pytest.mark.parametrize(("text", "other", "target", "left", "right", "wanted"), MISTAKES, ids=[one[1] for one in MISTAKES])
def test_a_planted_mistake_is_found(text: str, other: str, target: Target, left: str, right: str, wanted: Any) -> None:
    case = Case(left, right, (64, 32, 128), wanted=wanted)
    kernel, arrays = made(case, target), operands(case, (64, 32, 128), 7)
    assert text in kernel.ptx
    report, found = emulated(kernel, arrays, kernel.ptx.replace(text, other))
    assert report.faults or (found != interpreted(case, arrays)).any()


INSTRUCTIONS: list[tuple[str, Target, tuple[tuple[str, Any], ...], str, str]] = [
    ("i8", SM_90A, (), "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8", "IGMMA"),
    ("u8", SM_90A, FED, "wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.u8", "IGMMA"),
    ("f8e4m3", SM_90A, FED, "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "QGMMA"),
    ("f32", SM_90A, FED, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "HMMA"),
    ("i8", SM_100A, FED, "tcgen05.mma.cta_group::1.kind::i8", "UTCIMMA"),
    ("f8e5m2", SM_100A, FED, "tcgen05.mma.cta_group::1.kind::f8f6f4", "UTCQMMA"),
    ("f8e4m3", SM_100A, (), "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "HMMA"),
    ("f32", SM_100A, FED, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "HMMA"),
    ("i8", SM_120A, (), "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "IMMA"),
    ("f8e5m2", SM_120A, FED, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", "QMMA"),
    ("f32", SM_120A, FED, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "HMMA"),
]


@pytest.mark.parametrize(("name", "target", "wanted", "text", "opcode"), INSTRUCTIONS, ids=str)
def test_a_product_of_128_by_128_is_these_instructions_and_spills_nothing(
    name: str, target: Target, wanted: Any, text: str, opcode: str
) -> None:
    kernel = made(Case(name, name, (128, 128, 128 // DTYPES[name].bytes), wanted=wanted), target)
    assembled = assemble(kernel.ptx, target)
    assert text in kernel.ptx and (assembled.resources.spill_bytes, assembled.one_by_one) == (0, False)
    used = {one.split(".")[0] for one in instructions(disassemble(assembled.cubin))}
    assert opcode in used
    matrices = "mma_sync" in str(kernel.schedule)
    assert ("LDSM" in used) == matrices and "LDL" not in used


SCHEDULES: list[tuple[str, Target, dict[str, Any]]] = [
    ("i8", SM_90A, {"persistent": True}),
    ("f8e4m3", SM_90A, {"persistent": True, "order": "pingpong", "consumers": 2}),
    ("f8e5m2", SM_100A, {"persistent": True}),
    ("f32", SM_100A, {"persistent": True, "order": "pingpong", "consumers": 2}),
    ("f32", SM_120A, {"persistent": True}),
]


@pytest.mark.parametrize(("name", "target", "wanted"), SCHEDULES, ids=str)
def test_persistent_blocks_compute_the_product(name: str, target: Target, wanted: dict[str, Any]) -> None:
    case = Case(name, name, (128, 64, 128 // DTYPES[name].bytes), wanted=(*FED, *wanted.items()))
    check(case, target, (272, 144, 272))


FORMS = {
    "without a loop": """
    x, y = load(a, (m, 0), shape=(32, {depth}), pad=0), load(b, (n, 0), shape=(32, {depth}), pad=0)
    store(out, (m, n), mma(x, y.T, zeros((32, 32), {sums}){tf32}), mask=True)
""",
    "of a computed operand": """
    acc = zeros((32, 32), {sums})
    for k in range(cdiv(K, {depth})):
        x = load(a, (m, k), shape=(32, {depth}), pad=0)
        acc = mma(maximum(x, zeros((32, {depth}), {name})), load(b, (n, k), shape=(32, {depth}), pad=0).T, acc{tf32})
    store(out, (m, n), acc, mask=True)
""",
    "of a computed right operand": """
    acc = zeros((32, 32), {sums})
    for k in range(cdiv(K, {depth})):
        y = load(b, (n, k), shape=(32, {depth}), pad=0)
        acc = mma(load(a, (m, k), shape=(32, {depth}), pad=0), maximum(y, zeros((32, {depth}), {name})).T, acc{tf32})
    store(out, (m, n), acc, mask=True)
""",
    "in steps": """
    acc = zeros((32, 32), {sums})
    for k in range(cdiv(K, {depth})):
        x, y = load(a, (m, k), shape=(32, {depth}), pad=0), load(b, (n, k), shape=(32, {depth}), pad=0)
        acc = acc + mma(x, y.T, zeros((32, 32), {sums}){tf32})
    store(out, (m, n), acc, mask=True)
""",
    "side by side": """
    x = load(a, (m, 0), shape=(32, 4 * {depth}), pad=0).reshape((32, 4, {depth}))
    y = load(b, (n, 0), shape=(32, 4 * {depth}), pad=0).reshape((32, 4, {depth}))
    parts = mma(permute(x, (1, 0, 2)), permute(y, (1, 2, 0)), zeros((4, 32, 32), {sums}){tf32})
    store(out, (m, n), sum(parts, axis=0), mask=True)
""",
    "back to back": """
    x, y = load(a, (m, 0), shape=(32, {depth}), pad=0), load(b, (n, 0), shape=(32, {depth}), pad=0)
    acc = zeros((32, 32), {sums})
    for k in range(cdiv(K, {depth})):
        s = mma(x, load(b, (n, k), shape=({depth}, {depth}), pad=0).T, zeros((32, {depth}), {sums}){tf32})
        acc = mma(maximum(minimum(s, 3), -3).astype({name}), y.T, acc{tf32})
    store(out, (m, n), acc, mask=True)
""",
}


@pytest.mark.parametrize(("form", "name"), campaign.in_turn(FORMS, ("i8", "f8e4m3", "f32"), every=2))
def test_other_forms_of_products(form: str, name: str) -> None:
    """Operands through registers, products of whole tiles, several products at once, one of another one's result."""
    step = 32 // DTYPES[name].bytes
    sums, tf32 = ("i32", "") if name == "i8" else ("f32", ", tf32=True" if name == "f32" else "")
    body = FORMS[form].format(depth=2 * step, name=name, sums=sums, tf32=tf32)
    words = "Dim, In, Out, bid, cdiv, grid, kernel, load, maximum, minimum, mma, permute, requires, store, sum, zeros"
    dtypes = ", ".join(dict.fromkeys((name, sums)))
    head = f"from tilec import {words}, {dtypes}\n" + "".join(f'class {one}(Dim): "an extent"\n' for one in "MNK")
    text = (
        f"{head}@kernel\ndef product(a: In[{name}, M, K], b: In[{name}, N, K], out: Out[{sums}, M, N]):\n"
        f"    requires(K % 16 == 0)\n    grid(cdiv(M, 32), cdiv(N, 32))\n    m, n = bid(0), bid(1)\n{body.strip(chr(10))}\n"
    )
    case = Case(name, name, (32, 32, 2 * step), source=text)
    for target in MAIN_TARGETS:
        check(case, target, (48, 40, 112), 2)


@pytest.mark.parametrize("name", ["i8", "f8e4m3"])
def test_a_pair_of_blocks_computes_the_product(name: str) -> None:
    kernel = check(Case(name, name, (256, 64, 128), wanted=(*FED, ("cluster", 2))), SM_100A, (272, 80, 272))
    kind = "i8" if name == "i8" else "f8f6f4"
    assert f"tcgen05.mma.cta_group::2.kind::{kind}" in kernel.ptx
    assemble(kernel.ptx, SM_100A)


@pytest.mark.parametrize("target", OLDER, ids=str)
def test_other_targets_build_products_of_every_dtype(target: Target) -> None:
    for left, right in (("i8", "u8"), ("f8e4m3", "f8e5m2"), ("f32", "f32")):
        kernel = check(Case(left, right, (32, 32, 64)), target, (48, 32, 80))
        assemble(kernel.ptx, target)


def test_a_family_without_a_dtype_does_not_compute_it() -> None:
    """f32 is not rounded in shared memory, and integers have sums in tensor memory on one target alone."""
    for case, target in (
        (Case("f32", "f32", (64, 64, 32), wanted=(*FED, ("mma", "wgmma"))), SM_90A),
        (Case("f32", "f32", (128, 64, 32), wanted=(*FED, ("mma", "tcgen05"))), SM_100A),
        (Case("f32", "f32", (64, 64, 32), wanted=(("mma", "wgmma"), ("stages", 3))), SM_90A),
        (Case("i8", "i8", (128, 64, 128), wanted=(*FED, ("mma", "tcgen05"))), Target.parse("sm_100f")),
        (Case("i8", "i8", (64, 72, 128), wanted=FED), SM_90A),  # no instruction has 72 columns of integers,
        (Case("i8", "i8", (256, 48, 128), wanted=(*FED, ("cluster", 2))), SM_100A),  # and none of a pair 48
    ):
        with pytest.raises(CompileError) as refused:
            made(case, target)
        assert refused.value.diagnostics[0].code == "E0809", refused.value
    fed = {name: made(Case(name, name, (128, 64, 128), wanted=FED), Target.parse("sm_100f")) for name in ("f8e4m3", "i8")}
    assert "tcgen05.mma" in fed["f8e4m3"].ptx
    assert "tcgen05" not in fed["i8"].ptx and "mma.sync" in fed["i8"].ptx and "cp.async.bulk.tensor" in fed["i8"].ptx


def test_a_tile_that_is_no_whole_instruction_is_refused() -> None:
    with pytest.raises(CompileError) as refused:
        made(Case("i8", "i8", (32, 32, 16)), SM_120A)
    (problem,) = refused.value.diagnostics
    assert problem.code == "E0506" and "tensor cores multiply 16 x 8 x 32 of i8" in problem.message
    assert problem.hint == "choose a tile of multiples of 16, with a depth that is a multiple of 32"


def test_checks_refuse_products_that_no_instruction_makes() -> None:
    kernel = made(Case("i8", "i8", (64, 64, 128), wanted=FED), SM_90A)
    _one(kernel.prepared, GroupMma).verify()
    for left, right, text in (
        ("f8e4m3", "i8", "no products of f8e4m3 and i8"),
        ("i8", "f8e4m3", "no products of i8 and f8e4m3"),
        ("f32", "f32", "has no products of f32"),
        ("bf16", "bf16", "with sums in i32"),
    ):
        op = _one(fresh(Case("i8", "i8", (64, 64, 128), wanted=FED), SM_90A), GroupMma)
        _retype(op, 0, left)
        _retype(op, 2, right)
        with pytest.raises(VerifyError, match=re.escape(text)):
            op.verify()
    function = fresh(Case("i8", "i8", (128, 64, 128), wanted=FED), SM_100A)
    _one(function, TmemMma).verify()
    verify.verify(function, SM_100A)
    with pytest.raises(VerifyError, match="sm_100f has no products of i8 in tensor memory"):
        verify.verify(function, Target.parse("sm_100f"))


def test_notes_say_why_a_product_is_slower() -> None:
    def of(case: Case, target: Target) -> list[str]:
        return [one.text for one in notes(made(case, target).prepared, target) if one.kind == "tensor_core"]

    assert of(Case("i8", "i8", (64, 64, 128)), SM_90A) == []
    assert of(Case("f32", "f32", (64, 64, 32)), SM_90A) == [
        "a product of 64 x 64 does without `wgmma`: it reads shared memory, and these operands are rounded to tf32 in registers"
    ]
    assert of(Case("f32", "f32", (64, 64, 32)), SM_120A) == []
    (read,) = of(Case("i8", "i8", (64, 64, 128), (True, False)), SM_120A)
    assert read == "an operand of i8 is read one element at a time: its rows are not along the depth of the product"
    assert "it has no 72 columns of i8" in of(Case("i8", "i8", (64, 72, 128)), SM_90A)[0]
    assert "it has none of i8 on sm_100f" in of(Case("i8", "i8", (128, 64, 128)), Target.parse("sm_100f"))[0]


def fresh(case: Case, target: Target) -> Function:
    """The prepared kernel, which a test may change."""
    made.cache_clear()
    return made(case, target).prepared


def _one(function: Function, kind: type[Any]) -> Any:
    return next(op for op in function.body.walk() if isinstance(op, kind))


def _retype(op: Any, index: int, name: str) -> None:
    """Give an operand's buffer another dtype."""
    old = op.operands[index].shared
    op.operands[index] = Value(SharedType(DTYPES[name], old.shape, old.stages), owner=op.operands[index].owner)
