"""Claims of kernels that differ only in a float dtype of the same width are equal; any other difference changes the claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.claims import claims
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.pipeline import Request, Work, stage_named

KERNEL = """import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, f32, full, grid, i32, load, store


class E(Element):
    pass


class N(Dim):
    pass


@tilec.kernel
def k(x: In[E, N], index: In[i32, N], out: Out[E, N], *, E: Const, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    acc = full(BLOCK, 0, f32)
    for turn in range(2):
        acc = acc + load(x, bid(0), shape=BLOCK, pad=0).astype(f32)
    store(out, {index}, acc.astype(E), mask=True)
"""


def function(folder: Path, element: str, *, block: int = 128, index: str = "bid(0)") -> Function:
    """The kernel at a specialisation."""
    path = folder / "k.py"
    path.write_text(KERNEL.format(index=index), encoding="utf-8")
    return load_kernel(path, {"E": element, "BLOCK": block}, root=folder)


def test_floats_of_a_size_claim_the_same(tmp_path: Path) -> None:
    for names in (("bf16", "f16"), ("f8e4m3", "f8e5m2")):
        texts = [claims(function(tmp_path, name)) for name in names]
        assert texts[0] == texts[1]
    sizes = [claims(function(tmp_path, name)) for name in ("f32", "bf16", "f8e4m3")]
    assert len(set(sizes)) == 3


CONVERTED = """import tilec
from tilec import Const, Dim, Element, In, Out, bid, clamp, f32, grid, i32, kernel, load, store, where
from typing import Literal


class E(Element):
    pass


class N(Dim):
    pass


@tilec.kernel
def k(x: In[E, N], t: In[f32, LAST], out: Out[f32, N], *, E: Const, LAST: Const):
    grid(N)
    v = load(x, bid(0))
    store(out, bid(0), load(t, {at}))
"""
BY_NUMBERS = {
    "a sum": ("(clamp(v, 0.0, 8.0) + 1.0).astype(i32)", {"f16": 9, "bf16": 9, "f8e4m3": 9, "f8e5m2": 10}),
    "a constant": ("clamp(v, 0.0, 259.0).astype(i32)", {"f16": 259, "bf16": 260}),
    "in f32": ("(clamp(v, 0.0, 258.0) + 1.0).astype(f32).astype(i32)", {"f16": 259, "bf16": 260}),
    "a comparison": ("where((v >= 257.0) & ~(v > 256.0), 1, 0)", {"f16": 0, "bf16": 1}),
}


def converted(folder: Path, at: str, element: str, last: int) -> Work:
    """The first stage of a kernel that indexes `last` elements with what it converts from floats."""
    (folder / "k.py").write_text(CONVERTED.format(at=at), encoding="utf-8")
    work = Work(Request("k", "k.py", str(folder), {"E": element, "LAST": last}, {}, {}, {}), None)
    work.products |= stage_named("tir").run(work)
    return work


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_kernels_whose_indices_are_numbers_of_a_dtype_are_proven_each(tmp_path: Path, name: str) -> None:
    at, largest = BY_NUMBERS[name]
    texts = [converted(tmp_path, at, element, 1).products["claims"] for element in largest]
    assert len(set(texts)) == len(largest)
    for element, last in largest.items():
        if last:
            with pytest.raises(CompileError):
                stage_named("proofs").run(converted(tmp_path, at, element, last))


@pytest.mark.parametrize(("first", "second"), [("bf16", "f16"), ("f8e5m2", "f8e4m3")])
def test_two_roundings_of_a_number_are_not_one(tmp_path: Path, first: str, second: str) -> None:
    def at(*dtypes: str) -> str:
        left, right = (f"v.astype(tilec.{dtype}).astype(f32) > 1.0" for dtype in dtypes)
        return f"where(({left}) & ~({right}), 1, 0)"

    stage_named("proofs").run(converted(tmp_path, at(first, first), "f32", 1))
    with pytest.raises(CompileError):
        stage_named("proofs").run(converted(tmp_path, at(first, second), "f32", 1))


def test_everything_else_is_claimed(tmp_path: Path) -> None:
    base = claims(function(tmp_path, "bf16"))
    assert claims(function(tmp_path, "bf16", block=256)) != base
    assert claims(function(tmp_path, "bf16", index="bid(0) + 0 * BLOCK + 1")) != base
    text = print_function(function(tmp_path, "bf16"))
    for dtype in ("i8", "u8", "i64", "u32"):  # proofs depend on the ranges of integers
        other = parse_function(text.replace("tensor<i32, [N]", f"tensor<{dtype}, [N]"))
        assert claims(other) != base


def test_lines_and_the_function_are_unchanged(tmp_path: Path) -> None:
    kernel = function(tmp_path, "bf16")
    before = print_function(kernel)
    text = claims(kernel)
    assert print_function(kernel) == before
    assert print_function(parse_function(text)) == text
    changed = [(old, new) for old, new in zip(before.splitlines(), text.splitlines(), strict=True) if old != new]
    assert changed
    assert all(old.replace("bf16", "f16") == new or "constants" in old for old, new in changed)


@pytest.mark.parametrize("element", ["bf16", "f16", "f8e5m2"])
def test_the_obligations_are_equal(tmp_path: Path, element: str) -> None:
    kernel = function(tmp_path, element)
    assert [repr(obligation) for obligation in prove(parse_function(claims(kernel))).obligations] == [
        repr(obligation) for obligation in prove(parse_function(print_function(kernel))).obligations
    ]


def test_a_refusal_names_the_dtypes_of_the_kernel(tmp_path: Path) -> None:
    function(tmp_path, "bf16", index="bid(0) + 1")
    work = Work(Request("k", "k.py", str(tmp_path), {"E": "bf16", "BLOCK": 128}, {}, {}, {}), None)
    work.products |= stage_named("tir").run(work)
    with pytest.raises(CompileError) as staged:
        stage_named("proofs").run(work)
    with pytest.raises(CompileError) as plain:
        prove(work.function())
    assert staged.value.diagnostics == plain.value.diagnostics
