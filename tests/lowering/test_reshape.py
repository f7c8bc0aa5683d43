"""Reshapes and permutations of tiles give the right elements, without shared memory if the layout allows it."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES, Array

from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

Shape = tuple[int, ...]
IMPORTS = "In, Out, arange, astype, bf16, bid, f32, grid, i32, load, permute, reshape, store, sum, where"


def kernel(folder: Path, source: Shape, target: Shape, body: str, dtype: str = "f32") -> Function:
    """A proven kernel of one block that loads a tile `v`, runs `body` on it and stores it."""
    origins = "0, " * len(source), "0, " * len(target)
    lines = [
        '"""A tile under another shape."""',
        f"import tilec\nfrom tilec import {IMPORTS}\n\n\n@tilec.kernel",
        f"def k(x: In[{dtype}, {', '.join(map(str, source))}], out: Out[{dtype}, {', '.join(map(str, target))}]):",
        f"    grid(1)\n    v = load(x, ({origins[0]}), shape={source})",
        *(f"    {line}" for line in body.splitlines()),
        f"    store(out, ({origins[1]}), v)",
    ]
    path = folder / "k.py"
    path.write_text("\n".join(lines) + "\n")
    function = load_kernel(path, {}, root=folder)
    prove(function)
    return function


def computed(folder: Path, source: Shape, target: Shape, body: str, warps: int, dtype: str = "f32") -> tuple[bool, Array]:
    """Runs the kernel on 0, 1, 2, ...; returns whether it needed shared memory, and the stored elements."""
    function = kernel(folder, source, target, body, dtype)
    lowered = lower(prepare(kernel(folder, source, target, body, dtype), SM_90A, Overrides(warps=warps)), SM_90A)
    x = (np.arange(prod(source)) % 251).reshape(source).astype(TYPES[dtype])
    out = np.full(target, -1).astype(x.dtype)
    launch(function, lowered, {"x": x, "out": out}, {})
    return lowered.dynamic_shared_bytes > 0, out


def enumerated(shape: Shape) -> Array:
    return (np.arange(prod(shape)) % 251).reshape(shape)


RENAMED = [
    ((128,), (2, 64)),
    ((4, 64), (256,)),
    ((512,), (2, 4, 64)),
    ((8, 4, 32), (32, 32)),
    ((1, 256), (4, 1, 64)),
    ((2560,), (20, 128)),
    ((20, 128), (2560,)),
]
MOVED = [((6, 64), (2, 3, 64)), ((96,), (32, 3)), ((5, 7), (7, 5)), ((3, 40), (120,)), ((30,), (2, 3, 5))]


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize(("source", "target"), RENAMED)
def test_axes_split_and_join_in_registers(source: Shape, target: Shape, warps: int, tmp_path: Path) -> None:
    # The sum keeps the reshape from folding into a view of the load.
    shared, out = computed(tmp_path, source, target, f"v = reshape(v + 1, {target}) * 2", warps)
    assert (out == (enumerated(source).reshape(target) + 1) * 2).all()
    assert not shared


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize(("source", "target"), MOVED)
def test_reshapes_of_any_extents(source: Shape, target: Shape, dtype: str, tmp_path: Path) -> None:
    _, out = computed(tmp_path, source, target, f"v = reshape(v, {target})", 2, dtype)
    assert (out == enumerated(source).reshape(target)).all()


def test_a_split_needs_shared_memory_only_where_digits_do_not_divide(tmp_path: Path) -> None:
    assert computed(tmp_path, (96,), (32, 3), "v = reshape(v, (32, 3))", 1)[0]
    assert not computed(tmp_path, (96,), (3, 32), "v = reshape(v, (3, 32))", 1)[0]


@pytest.mark.parametrize(("source", "axes"), [((8, 64), (1, 0)), ((2, 16, 8), (2, 0, 1)), ((3, 5, 4), (1, 2, 0))])
def test_permutations(source: Shape, axes: tuple[int, ...], tmp_path: Path) -> None:
    target = tuple(source[axis] for axis in axes)
    _, out = computed(tmp_path, source, target, f"v = permute(v, {axes}) + 1", 2)
    assert (out == enumerated(source).transpose(axes) + 1).all()


def test_a_permuted_reshape_is_combined_with_a_plain_tile(tmp_path: Path) -> None:
    body = "w = reshape(permute(reshape(v, (16, 32)), (1, 0)), (512,))\nv = where(arange(512) % 2 == 0, w, v)"
    _, out = computed(tmp_path, (512,), (512,), body, 4)
    plain = enumerated((512,))
    assert (out == np.where(np.arange(512) % 2 == 0, plain.reshape(16, 32).T.reshape(512), plain)).all()


def test_conditions_are_reshaped_too(tmp_path: Path) -> None:
    body = "big = reshape(v > 100, (5, 6))\nv = where(big, 1, 0)"
    _, out = computed(tmp_path, (30,), (5, 6), body, 1, "i32")
    assert (out == (enumerated((5, 6)) > 100)).all()


def test_a_reduction_over_one_half_of_a_split_axis(tmp_path: Path) -> None:
    _, out = computed(tmp_path, (4, 128), (4, 2), "v = sum(reshape(v, (4, 2, 64)), axis=2)", 2)
    assert (out == enumerated((4, 128)).reshape(4, 2, 64).sum(axis=2)).all()


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_reshapes_become_machine_code(target: Target, tmp_path: Path) -> None:
    body = (
        "v = reshape(reshape(v * 2, (6, 2, 64)), (12, 64))\nv = permute(reshape(v, (3, 256)), (1, 0))\nv = reshape(v, (6, 128))"
    )
    lowered = lower(prepare(kernel(tmp_path, (768,), (6, 128), body), target), target)
    opcodes = instructions(disassemble(assemble(to_ptx(lowered.mlir, target), target).cubin))
    assert sum(count for name, count in opcodes.items() if name.startswith("STG")) >= 1
    assert not any(name.startswith(("LDL", "STL")) for name in opcodes)
