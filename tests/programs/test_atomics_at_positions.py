"""Atomics at positions on the interpreter, the block machine and the emulator of three architectures.

Blocks and threads run in any order, so the old values of two runs need not be equal. What they must be is tested exactly: of
each element, the updates are the edges of a graph from the old value to the new one, and an order in which one
value follows from the other is a trail from the first to the last value that takes each edge once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import campaign
from tests.programs.machines import LOWERING_TESTS, manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import ATOMICS, AtomicScatter, atomic_word
from tilec.ir.types import DTYPES
from tilec.lowering import Lowered, lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

Array = np.ndarray[Any, Any]
BLOCKS, EXTENT = 3, 7
COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "exch": lambda _, b: b,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A tile of `shape` per block, combined with a tensor of `axes` axes; `scalar`: at one position that all threads have."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    axes: int = 1
    warps: int = 2
    used: bool = True
    spread: bool = False
    """Whether the tile is a row that a broadcast reads, which many threads have."""

    @property
    def text(self) -> str:
        shape = ", ".join(map(str, self.shape))
        dtype, box, more = self.dtype, f"({', '.join(('1', *map(str, self.shape)))})", ", 0" * len(self.shape)
        positions = ", ".join(f"load(p{axis}, (b{more}), shape={box}).reshape(({shape},))" for axis in range(self.axes))
        value = f"load(x, (b{more}), shape={box}).reshape(({shape},))"
        compare = f"load(y, (b{more}), shape={box}).reshape(({shape},)), " if self.kind == "cas" else ""
        call = f"{atomic_word(self.kind)}(t, {compare}{value}, at=({positions},), mask=True)"
        lines = [f"old = {call}" if self.used else call]
        if self.used:
            lines.append(f"store(old_values, (b{more}), old.reshape({box}))")
        if self.used and self.spread:
            lines.append(f"store(sums, (b{more}, 0), (old[..., None] + zeros((1, 16), {dtype})).reshape({box[:-1]}, 16)))")
        parameters = [f"x: In[{dtype}, {BLOCKS}, {shape}]", f"y: In[{dtype}, {BLOCKS}, {shape}]"]
        parameters += [f"p{axis}: In[i32, {BLOCKS}, {shape}]" for axis in range(self.axes)]
        parameters.append(f"t: Atomic[{dtype}, {', '.join([str(EXTENT)] * self.axes)}]")
        parameters += [f"old_values: Out[{dtype}, {BLOCKS}, {shape}]"] if self.used else []
        parameters += [f"sums: Out[{dtype}, {BLOCKS}, {shape}, 16]"] if self.used and self.spread else []
        body = "\n".join(f"    {line}" for line in (f"grid({BLOCKS})", "b = bid(0)", *lines))
        names = "Atomic, In, Out, bid, load, store, grid, zeros, i32, i64, u32, u64, f32, f16, bf16"
        words = ", ".join(map(atomic_word, ATOMICS["i32"]))
        head = f'"""Atomics."""\nimport tilec\nfrom tilec import {names}, {words}'
        return f"{head}\n\n\n@tilec.kernel\ndef k({', '.join(parameters)}):\n{body}\n"

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        function = load_kernel(path, {}, root=folder)
        prove(function)
        return function

    def arrays(self, seed: int) -> dict[str, Array]:
        """Few positions and few values, so that many updates meet; some positions lie outside."""
        random, dtype = np.random.default_rng(seed), numpy_dtype(DTYPES[self.dtype])
        low, shape = 0 if self.dtype[0] == "u" else -3, (BLOCKS, *self.shape)
        found: dict[str, Array] = {name: random.integers(low, 4, shape).astype(dtype) for name in ("x", "y")}
        found["t"] = random.integers(low, 4, (EXTENT,) * self.axes).astype(dtype)
        for axis in range(self.axes):
            found[f"p{axis}"] = random.integers(-1, EXTENT + 1, shape).astype(np.int32)
        if self.used:
            found["old_values"] = np.zeros(shape, dtype)
        if self.used and self.spread:
            found["sums"] = np.zeros((*shape, 16), dtype)
        return found


def lowered(function: Function, target: Target, warps: int) -> Lowered:
    return lower(prepare(function, target, Overrides(warps=warps)), target)


def has_order(first: int | float, last: int | float, edges: list[tuple[int | float, int | float]]) -> bool:
    """Whether a trail from `first` to `last` takes every edge once: as many edges lead to a value as from it, but for the ends,
    and all of them hang together (Euler)."""
    balance = Counter[int | float]({first: 1})
    balance[last] -= 1
    for before, after in edges:
        balance[before] -= 1
        balance[after] += 1
    reached, pending = {first}, [first]
    while pending:
        value = pending.pop()
        for before, after in edges:
            if before == value and after not in reached:
                reached.add(after)
                pending.append(after)
    return not any(balance.values()) and all(before in reached for before, _ in edges)


def wrong(case: Case, before: dict[str, Array], after: dict[str, Array]) -> str:
    """The first element of which the old values fit no order; empty if there is none. Skipped positions have 0."""
    positions = [before[f"p{axis}"] for axis in range(case.axes)]
    inside = np.logical_and.reduce([(position >= 0) & (position < EXTENT) for position in positions])
    edges: dict[tuple[int, ...], list[tuple[int | float, int | float]]] = {}
    for index in np.ndindex(inside.shape):
        old = after["old_values"][index]
        if not inside[index]:
            if old != 0:
                return f"{index} is outside, and has {old}"
            continue
        new = before["x"][index]
        if case.kind == "cas":
            put = new if old == before["y"][index] else old
        else:
            put = np.asarray(COMBINED[case.kind](old.item(), new.item())).astype(old.dtype)
        edges.setdefault(tuple(int(position[index]) for position in positions), []).append((old.item(), put.item()))
    for position in np.ndindex(before["t"].shape):
        if not has_order(before["t"][position].item(), after["t"][position].item(), edges.get(position, [])):
            return f"t{list(position)} went from {before['t'][position]} to {after['t'][position]} by {edges.get(position, [])}"
    if case.spread and not (after["sums"] == after["old_values"][..., None]).all():
        return "another thread has another old value"
    return ""


CASES = [
    *(Case(kind, dtype, (40,)) for dtype, kinds in ATOMICS.items() for kind in kinds),
    *(Case(kind, "i32", (24,), used=False) for kind in ATOMICS["i32"]),
    *(Case("add", dtype, (3, 16), axes=2, used=False) for dtype in ATOMICS),
    Case("max", "f32", (5, 8), used=False, warps=1),
    Case("add", "i32", (1,), warps=1), Case("add", "i64", (1,), warps=4), Case("exch", "f32", (2, 3), axes=2),
    Case("cas", "i64", (4, 24), axes=2, warps=4), Case("add", "u32", (200,), warps=1), Case("add", "i32", (3, 40), warps=4),
    Case("add", "i32", (1000,), warps=4), Case("add", "i32", (24,), spread=True, warps=4),
    Case("exch", "i64", (4, 6), axes=2, spread=True), Case("add", "bf16", (1,), warps=4, spread=True),
]  # fmt: skip
"""Of the 16-bit floats, sums of few small integers are exact."""


def name_of(case: Case) -> str:
    """For the names of tests."""
    return f"{case.kind}-{case.dtype}-{'x'.join(map(str, case.shape))}{'' if case.used else '-red'}{'-spread' * case.spread}"


def agrees(case: Case, expected: dict[str, Array], before: dict[str, Array], after: dict[str, Array]) -> None:
    if case.used:
        assert wrong(case, before, after) == ""
    if case.kind not in ("exch", "cas"):
        np.testing.assert_array_equal(after["t"], expected["t"])


def copied(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_old_values_follow_from_each_other(case: Case, tmp_path: Path) -> None:
    """On the interpreter, which NumPy confirms, and on the block machine."""
    function = case.function(tmp_path)
    for seed in range(3):
        before = case.arrays(seed)
        expected, found = copied(before), copied(before)
        run(function, expected)
        agrees(case, expected, before, expected)
        confirmed(case, before, expected["t"])
        launch(function, lowered(case.function(tmp_path), SM_90A, case.warps), found, {})
        agrees(case, expected, before, found)


def confirmed(case: Case, before: dict[str, Array], after: Array) -> None:
    """The result of kinds that NumPy has, which update elements that occur several times as often (`ufunc.at`)."""
    functions = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or}
    function = {**functions, "xor": np.bitwise_xor}.get(case.kind)
    if function is None:
        return
    positions = [before[f"p{axis}"].reshape(-1) for axis in range(case.axes)]
    inside = np.logical_and.reduce([(position >= 0) & (position < EXTENT) for position in positions])
    wide = before["t"].astype(np.float64 if DTYPES[case.dtype].is_float else before["t"].dtype)
    function.at(wide, tuple(position[inside] for position in positions), before["x"].reshape(-1)[inside].astype(wide.dtype))
    np.testing.assert_array_equal(after, wide.astype(after.dtype))


@pytest.mark.parametrize("case", campaign.chosen(CASES, lambda case: CASES.index(case) % 3 == 0 or case.spread), ids=name_of)
def test_every_architecture_agrees(case: Case, tmp_path: Path) -> None:
    """In lock step and in random orders of warps; nothing races, and no old value is read before it is there."""
    for number, target in enumerate(MAIN_TARGETS):
        function = case.function(tmp_path)
        code = lowered(case.function(tmp_path), target, case.warps)
        text, described = ptx.to_ptx(code.mlir, target), manifest(function, code, target)
        assert ("atom." in text) == (case.used or case.kind in ("exch", "cas") or (case.dtype == "f32" and case.kind == "max"))
        before = case.arrays(number)
        expected = copied(before)
        run(function, expected)
        for seed in (0, number + 1):
            report = emulate(text, described, copied(before), {}, seed=seed)
            assert report.clean and not report.notes, (report.faults or report.notes)[0]
            agrees(case, expected, before, report.tensors)


def test_the_oracle_refuses_wrong_old_values() -> None:
    assert has_order(0, 3, [(0, 1), (1, 2), (2, 3)]) and has_order(5, 5, [(5, 5)]) and has_order(4, 4, [])
    assert not has_order(0, 3, [(0, 1), (1, 2), (1, 3)])  # two had the same old value
    assert not has_order(0, 1, [(0, 1), (7, 7)])  # 7 was never there
    assert not has_order(0, 2, [(0, 1)])  # the last value is another


def test_unused_old_values_are_not_asked_for(tmp_path: Path) -> None:
    used, unused = (Case("add", "i32", (13,), used=used).function(tmp_path) for used in (True, False))
    kinds = [[len(op.results) for op in prepare(f, SM_90A, Overrides(warps=2)).body.walk() if isinstance(op, AtomicScatter)]
             for f in (used, unused)]  # fmt: skip
    assert kinds == [[1], [0]]
