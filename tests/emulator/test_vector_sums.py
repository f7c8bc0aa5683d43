"""`red` of vectors (PTX ISA, `red`): adjacent elements, each added by itself; alignment; the forms that do not exist."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.tiny import launch, program
from tilec.emulator import UnsupportedPtx

FORMS = {
    "v2.f32": (np.float32, 2), "v4.f32": (np.float32, 4), "noftz.v2.f16x2": (np.float16, 4), "noftz.v4.f16x2": (np.float16, 8),
    "noftz.v2.bf16x2": (ml_dtypes.bfloat16, 4), "noftz.v4.bf16x2": (ml_dtypes.bfloat16, 8), "noftz.v2.f16": (np.float16, 2),
    "noftz.v8.bf16": (ml_dtypes.bfloat16, 8),
}  # fmt: skip


def sums(form: str, address: str, target: str = "sm_90a", words: int | None = None) -> str:
    """Every thread adds its elements of `given` to `out` at a byte that `address` computes from %t into %r9."""
    dtype, count = FORMS[form]
    halves = form.endswith(("v2.f16", "v8.bf16"))
    register, bits = ("h", 16) if halves else ("r", 32)
    items = words or (count if halves or dtype is np.float32 else count // 2)
    names = ", ".join(f"%{register}{10 + k}" for k in range(items))
    size = count * np.dtype(dtype).itemsize
    loads = " ".join(f"ld.global.b{bits} %{register}{10 + k}, [%d0+{k * bits // 8}];" for k in range(items))
    body = f"mad.wide.u32 %d0, %t, {size}, %a0; {loads} {address} mad.wide.u32 %d1, %r9, 1, %a1;"
    return program(f"{body} red.relaxed.gpu.global.add.{form} [%d1], {{{names}}};", ["given", "out"], target=target)


def arrays(form: str, seed: int = 0) -> tuple[Any, Any, int]:
    dtype, count = FORMS[form]
    random = np.random.default_rng(seed)
    given, out = (random.integers(-4, 5, 32 * count).astype(dtype) for _ in range(2))
    return given, out, count * np.dtype(dtype).itemsize


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_added(form: str, seed: int) -> None:
    """Eight threads add to each vector; small integers are exact in any order."""
    given, out, size = arrays(form)
    text = sums(form, f"and.b32 %r9, %t, 3; mul.lo.u32 %r9, %r9, {size};")
    report = launch(text, {"given": given, "out": out.copy()}, seed=seed)
    assert report.faults == []
    count = given.size // 32
    expected = out.astype(np.float64)
    for thread in range(32):
        expected[thread % 4 * count : (thread % 4 + 1) * count] += given[thread * count : (thread + 1) * count].astype(
            np.float64
        )
    np.testing.assert_array_equal(report.tensors["out"].view(out.dtype).astype(np.float64), expected)


def test_halves_of_two_vectors_meet() -> None:
    """The elements are atomic, not the vector: one of two elements and one of four update the same memory without a race."""
    body = """mov.f32 %r1, 0f3F800000; setp.lt.u32 %p1, %t, 16; @%p1 bra two;
    red.global.add.v4.f32 [%a0], {%r1, %r1, %r1, %r1}; bra done;
    two: red.global.add.v2.f32 [%a0+8], {%r1, %r1}; done:"""
    report = launch(program(body, ["out"]), {"out": np.zeros(4, np.float32)}, seed=1)
    assert report.faults == [] and report.tensors["out"].view(np.float32).tolist() == [16, 16, 32, 32]


def test_sums_of_f32_flush_subnormal_numbers() -> None:
    tensors = {"given": np.full(4, 1e-40, np.float32), "out": np.array([1e-40, 0, -1e-40, 1], np.float32)}
    body = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%a0]; red.global.add.v4.f32 [%a1], {%r1, %r2, %r3, %r4};"
    out = launch(program(body, ["given", "out"]), tensors, threads=1).tensors["out"].view(np.float32)
    assert out.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_the_address_is_a_multiple_of_the_vector(form: str) -> None:
    given, out, size = arrays(form)
    report = launch(
        sums(form, f"mul.lo.u32 %r9, %t, {size}; sub.u32 %r9, %r9, {size // 2}; max.s32 %r9, %r9, 0;"),
        {"given": given, "out": out},
    )
    assert any("align" in str(fault).lower() for fault in report.faults), report.faults


def test_a_vector_does_not_pass_the_end() -> None:
    given, out, size = arrays("v4.f32")
    report = launch(sums("v4.f32", f"mul.lo.u32 %r9, %t, {size};"), {"given": given, "out": out[:-4].copy()})
    assert report.faults


WRONG = {
    "a vector of integers": "red.global.add.v4.u32 [%a0], {%r1, %r1, %r1, %r1};",
    "eight f32": "red.global.add.v8.f32 [%a0], {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1};",
    "a maximum of f32": "red.global.max.v4.f32 [%a0], {%r1, %r1, %r1, %r1};",
    "in shared memory": "red.shared.add.v4.f32 [%a0], {%r1, %r1, %r1, %r1};",
    "without noftz": "red.global.add.v4.bf16x2 [%a0], {%r1, %r1, %r1, %r1};",
    "too few elements": "red.global.add.v4.f32 [%a0], {%r1, %r1};",
    "eight pairs": "red.global.add.noftz.v8.f16x2 [%a0], {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1};",
}


@pytest.mark.parametrize("name", WRONG)
def test_other_forms_do_not_exist(name: str) -> None:
    """The table of the PTX ISA, and global memory alone."""
    with pytest.raises(UnsupportedPtx):
        launch(program(f"mov.b32 %r1, 0; {WRONG[name]}", ["out"]), {"out": np.zeros(8, np.float32)})


def test_older_chips_lack_them() -> None:
    with pytest.raises(UnsupportedPtx):
        launch(
            program("mov.b32 %r1, 0; red.global.add.v2.f32 [%a0], {%r1, %r1};", ["out"], target="sm_89"),
            {"out": np.zeros(8, np.float32)},
        )
