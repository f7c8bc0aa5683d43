"""Small rules of lowering: where a guard or a test is left out, which thread copies, and how words are stored."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch

from tests.passes.builder import Access, Kernel, binary, sym
from tilec.codegen.ptx import _with_neutral_names  # pyright: ignore[reportPrivateUsage]
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Block
from tilec.ir.ops.store_ops import WaitStores
from tilec.ir.types import TileType
from tilec.ir.types import i32 as i32_dtype
from tilec.lowering import lower
from tilec.lowering.block_dependence import block_dependent_values
from tilec.lowering.boxes import _axes_in_bounds  # pyright: ignore[reportPrivateUsage]
from tilec.lowering.context import Context
from tilec.lowering.launch_terms import Leaf, launch_term, named
from tilec.lowering.stores import lower_wait_stores
from tilec.lowering.words import store_vector
from tilec.mlir.builder import Builder
from tilec.mlir.types import GLOBAL, Type, f32, i16, i32
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

# Launch expressions and extents


@pytest.mark.parametrize(("low", "guarded"), [(0, True), (1, False), (2, False)])
@pytest.mark.parametrize("kind", ["//", "%"])
def test_a_launch_value_divides_without_a_guard_if_it_is_at_least_one(kind: str, low: int, guarded: bool) -> None:
    out = Builder()
    leaves = {name: Leaf(named(name, i32), i32_dtype, least, 100) for name, least in (("n", 0), ("d", low))}
    launch_term(out, binary(kind, sym("n"), sym("d")), leaves)
    assert any("llvm.select" in line for line in out.lines) == guarded
    assert any("tilec.proven" in line for line in out.lines) == (not guarded)


def test_an_extent_that_is_a_dim_is_the_argument_itself() -> None:
    k = Kernel(1)
    x = k.tensor("x", Access.IN, "N", binary("+", sym("N"), sym("M")))
    context = Context(k.function)
    before = len(context.lines)
    assert context.extent(x, 0) == context.leaves["N"].value
    assert context.lines[before:] == []
    assert context.extent(x, 1).type is i32
    assert "llvm.trunc" in context.lines[-1]


# Values that depend on the block


def test_a_carried_value_depends_on_the_block_if_its_initial_value_does() -> None:
    k = Kernel(4)
    block, same = k.bid(), k.c(7)
    body, bounds = Block(), [k.c(0), k.c(3), k.c(1)]
    loop = ops.For(operands=[*bounds, same, block], variable="i", regions=[body])
    variable, carried_same, carried_block = (body.add_argument(TileType(i32_dtype), name) for name in ("i", "s", "b"))
    body.ops.append(ops.Yield(operands=[carried_same, carried_block]))
    k.emit(loop, TileType(i32_dtype), TileType(i32_dtype))
    found = block_dependent_values(k.function)
    assert {block, carried_block} <= found
    assert found.isdisjoint({same, variable, carried_same})


# Accesses to memory


@pytest.mark.parametrize(("offset", "inside"), [(-1, False), (0, True), (1, True), (6, True), (7, False), (70, False)])
def test_a_box_is_inside_from_the_first_element_to_the_last(offset: int, inside: bool) -> None:
    """64 of 70 elements at a constant offset; on the other axis the offset is not constant."""
    k = Kernel(4)
    x = k.tensor("x", Access.IN, 64, 70)
    assert _axes_in_bounds(x, [k.bid(), k.c(offset)], (1, 64)) == ({1} if inside else set[int]())


GATHER = '''"""A gather at a sum."""
import tilec
from tilec import In, Out, f32, gather, grid, load, store, {dtype}


@tilec.kernel
def k(x: In[f32, 40], at: In[{dtype}, 32], out: Out[f32, 32]):
    grid(1)
    store(out, 0, gather(x, load(at, 0, shape=32) + 5, pad=7))
'''


@pytest.mark.parametrize("dtype", ["i32", "u32"])
def test_a_sum_of_indices_that_wraps_is_the_index_of_an_element(dtype: str, tmp_path: Path) -> None:
    """A sum of u32 that overflows is small again, so its address may not be the sum in 64 bits."""
    path = tmp_path / "k.py"
    path.write_text(GATHER.format(dtype=dtype), encoding="utf-8")
    function, prepared = (load_kernel(path, {}, root=tmp_path) for _ in range(2))
    lowered = lower(prepare(prepared, SM_90A, Overrides(warps=1)), SM_90A)
    x, out = np.arange(40, dtype=np.float32), np.zeros(32, np.float32)
    at = np.arange(-16, 16).astype({"i32": np.int32, "u32": np.uint32}[dtype])
    launch(function, lowered, {"x": x, "at": at, "out": out}, {})
    index = np.arange(-16, 16) + 5
    assert (out == np.where(index >= 0, index, 7)).all()


WORDS: list[tuple[Type, int, str]] = [
    (f32, 1, ".b32 [$0], $1;"),
    (f32, 2, ".v2.b32 [$0], {$1, $2};"),
    (f32, 4, ".v4.b32 [$0], {$1, $2, $3, $4};"),
    (i16, 2, ".b32 [$0], $1;"),
    (i16, 4, ".v2.b32 [$0], {$1, $2};"),
]


@pytest.mark.parametrize(("type_", "count", "instruction"), WORDS)
def test_a_streamed_store_has_one_operand_for_each_word(type_: Type, count: int, instruction: str) -> None:
    context = Context(Kernel(1).function)
    store_vector(context, named("p", GLOBAL), [named(f"v{i}", type_) for i in range(count)], streamed=True)
    assert f'"st.global.cs{instruction}"' in context.lines[-1]


@pytest.mark.parametrize("warps_before", [0, 4])
def test_the_first_thread_of_a_role_waits_for_its_stores(warps_before: int) -> None:
    """Bulk groups belong to a thread: the thread that issues the copies waits for them."""
    context = Context(Kernel(1).function)
    with context.role(2, warps_before, 4):
        lower_wait_stores(context, WaitStores(complete=True))
        thread = context.thread().name
    text = "\n".join(context.lines)
    guard = re.search(rf'(%\d+) = llvm\.icmp "eq" {thread}, (%\d+) : i32\n(?:.*\n)*?scf\.if \1 {{\n.*wait_group 0;', text)
    assert guard and f"{guard[2]} = llvm.mlir.constant(0 : i32)" in text


# Names in PTX


@pytest.mark.parametrize("name", ["k", "ab", "memcpy", "__nvvm_reflect"])
def test_a_neutral_name_has_the_length_of_the_kernels_own(name: str) -> None:
    """So columns in PTX do not move."""
    text = f"define ptx_kernel void @{name}(ptr %0) {{\n  ret void\n}}\n"
    neutral, restore = _with_neutral_names(text)
    assert len(neutral) == len(text)
    assert (neutral == text) == (len(name) == 1)
    assert restore(neutral) == text
