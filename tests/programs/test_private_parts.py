"""Atomics on tensors of few elements: a block's own part in shared memory, on the interpreter, the block machine and the
emulator of three architectures; and the mistakes that checkers must find."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from tests.programs.machines import LOWERING_TESTS, manifest
from tests.programs.private_programs import Program, programs
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Block, Function, Op, VerifyError
from tilec.ir.ops import AtomicScatter, For
from tilec.ir.ops.private_ops import PrivateFill, PrivateFlush, PrivateUpdate
from tilec.ir.ops.sync_ops import Barrier, SharedFree
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

EXAMPLES = settings(max_examples=12, deadline=None)
EDGES = [
    Program(dtype="f32", extents=(16,), repeated=True), Program(kind="max", dtype="i64", extents=(3, 4), shape=(8, 16)),
    Program(extents=(1,), blocks=1), Program(kind="min", dtype="u32", extents=(2, 3), index="u32"),
    Program(kind="xor", extents=(5,), copies=4, warps=4), Program(extents=(9,), symbolic=True),
    Program(kind="and", extents=(3, 5), symbolic=True), Program(dtype="f32", extents=(4, 3), shape=(100,), rounds=3),
    Program(extents=(600,), shape=(1024,), warps=1, rounds=3),
    Program(extents=(5000,), shape=(1024,), warps=1, rounds=10, blocks=1),
]  # fmt: skip


def scheduled(program: Program, folder: Path, target: Target = SM_90A) -> Function:
    return prepare(program.function(folder), target, Overrides(warps=program.warps))


def kinds(function: Function, kind: type[Op]) -> list[Op]:
    return [op for op in function.body.walk() if isinstance(op, kind)]


def agrees_everywhere(program: Program, folder: Path, seeds: tuple[int, ...] = (0, 5)) -> None:
    function = program.function(folder)
    prove(function)
    before = program.arrays(len(program.text))
    expected = {name: array.copy() for name, array in before.items()}
    run(function, expected)
    np.testing.assert_array_equal(expected["t"], program.expected(before))
    for number, target in enumerate(MAIN_TARGETS):
        prepared = scheduled(program, folder, target)
        assert kinds(prepared, PrivateFlush) and not kinds(prepared, AtomicScatter)
        code = lower(prepared, target)
        if not number:
            found = {name: array.copy() for name, array in before.items()}
            launch(function, code, found, program.dims)
            np.testing.assert_array_equal(found["t"], expected["t"])
        text = ptx.to_ptx(code.mlir, target)
        assert "red.relaxed.cta.shared." in text
        for seed in seeds:
            arrays = {name: array.copy() for name, array in before.items()}
            report = emulate(text, manifest(function, code, target), arrays, program.dims, seed=seed)
            assert report.clean and not report.notes, (report.faults or report.notes)[0]
            np.testing.assert_array_equal(report.tensors["t"], expected["t"])


@EXAMPLES
@given(programs())
def test_random_programs_agree(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agrees_everywhere(program, Path(folder), (0,))


@pytest.mark.parametrize("program", EDGES, ids=lambda program: f"{program.kind}-{program.dtype}-{program.extents}")
def test_edges_agree(program: Program, tmp_path: Path) -> None:
    """One place, all positions equal, copies in several threads, extents known at launch, many places for few threads."""
    agrees_everywhere(program, tmp_path)


def test_elements_that_no_position_names_keep_their_bits(tmp_path: Path) -> None:
    """A sum of f32 in memory flushes subnormal numbers: it must not touch what the kernel does not name, nor the sign of 0."""
    program = Program(dtype="f32", extents=(8,), repeated=True, masked=False)
    function, code = program.function(tmp_path), lower(scheduled(program, tmp_path), SM_90A)
    arrays = program.arrays(1)
    arrays["t"][1:] = np.array([-0.0, 1e-40, -1e-40, np.inf, np.nan, 0.0, 1.5], np.float32)
    kept = arrays["t"][1:].copy()
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, {}, seed=0)
    assert report.clean
    np.testing.assert_array_equal(report.tensors["t"][1:].view(np.uint32), kept.view(np.uint32))


def test_integers_wrap(tmp_path: Path) -> None:
    program = Program(extents=(2,), blocks=2)
    function, code = program.function(tmp_path), lower(scheduled(program, tmp_path), SM_90A)
    arrays = program.arrays(3)
    arrays["x"][:] = 2**31 - 7
    expected = program.expected(arrays)
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, {}, seed=2)
    np.testing.assert_array_equal(report.tensors["t"], expected)


@pytest.mark.parametrize("symbolic", [False, True])
def test_rows_apart(symbolic: bool, tmp_path: Path) -> None:
    """What lies between rows stays."""
    program = Program(extents=(3, 5), strided=True, symbolic=symbolic)
    function, code = program.function(tmp_path), lower(scheduled(program, tmp_path), SM_90A)
    arrays = program.arrays(4)
    expected = np.arange(21, dtype=np.int32).reshape(3, 7)
    arrays["t"] = expected.reshape(-1).copy()
    expected[:, :5] = program.expected(arrays | {"t": expected[:, :5]})
    text, described = ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A)
    report = emulate(text, described, arrays, program.dims | {"S": 7}, seed=0)
    assert report.clean
    np.testing.assert_array_equal(report.tensors["t"].reshape(3, 7), expected)


KERNEL = '''"""Two tensors."""
import tilec
from tilec import Atomic, Dim, In, InOut, arange, atomic_add, atomic_max, bid, grid, i32, load, max, requires, store, unsafe
from tilec import values


class N(Dim):
    """positions"""


class V(Dim):
    """bins"""


@tilec.kernel
def k(x: In[i32, N, 256], t: Atomic[i32, PLACES], u: Atomic[i32, 16], y: InOut[i32, N]):
    grid(N)
    values(x, 0, 16)
    v = load(x, (bid(0), 0), shape=(1, 256))
'''
UPDATE = "atomic_add(t, 1, at=v, mask=True)"
KEPT = {
    "too many places": ("129", UPDATE),
    "no bound": ("V", UPDATE),
    "a bound that is too large": ("V", f"requires(V <= 9000)\n    {UPDATE}"),
    "an old value is used": ("16", "old = atomic_add(t, 1, at=v, mask=True)\n    store(y, bid(0), max(old))"),
    "of another kind too": ("16", f"{UPDATE}\n    atomic_max(t, 1, at=v)"),
    "a box too": ("16", f"{UPDATE}\n    atomic_add(t, 0, arange(16))"),
    "unsafe": ("16", 'with unsafe("checked elsewhere"):\n        atomic_add(t, 1, at=v * 3)'),
    "few updates": ("16", "atomic_add(t, 1, at=arange(31), mask=True)"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_keeps_its_atomics(name: str, tmp_path: Path) -> None:
    read_from, text = KEPT[name]
    path = tmp_path / "k.py"
    path.write_text(KERNEL.replace("PLACES", read_from) + f"    {text}\n")
    prepared = prepare(load_kernel(path, {}, root=tmp_path), SM_90A)
    assert kinds(prepared, AtomicScatter) and not kinds(prepared, PrivateUpdate)


def test_two_tensors_have_parts_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    text = f"{UPDATE}\n    if bid(0) > 1:\n        atomic_max(u, v, at=v)\n    {UPDATE}\n    store(y, bid(0), 1)"
    path.write_text(KERNEL.replace("PLACES", "V") + f"    requires(V < 100)\n    {text}\n")
    prepared = prepare(load_kernel(path, {}, root=tmp_path), SM_90A)
    assert [len(kinds(prepared, kind)) for kind in (PrivateFill, PrivateUpdate, PrivateFlush)] == [2, 3, 2]
    assert sum(op in prepared.body.ops for op in kinds(prepared, Barrier)) == len(kinds(prepared, Barrier))


def moved(ops: list[Op], op: Op, where: int) -> None:
    ops.remove(op)
    ops.insert(where, op)


def _first(function: Function, kind: type[Op]) -> Op:
    return kinds(function, kind)[0]


def _update_before_fill(function: Function) -> None:
    fill = _first(function, PrivateFill)
    moved(function.body.ops, fill, function.body.ops.index(_first(function, For)))


def _flush_in_the_loop(function: Function) -> None:
    loop, flush = _first(function, For), _first(function, PrivateFlush)
    function.body.ops.remove(flush)
    loop.regions[0].ops.insert(-1, flush)


def _fill_in_the_loop(function: Function) -> None:
    loop, fill = _first(function, For), _first(function, PrivateFill)
    function.body.ops.remove(fill)
    loop.regions[0].ops.insert(0, fill)


def _flush_twice(function: Function) -> None:
    flush = _first(function, PrivateFlush)
    assert isinstance(flush, PrivateFlush)
    function.body.ops.insert(function.body.ops.index(flush), replace(flush, operands=[*flush.operands]))


def _no_flush(function: Function) -> None:
    function.body.ops.remove(_first(function, PrivateFlush))


def _free_first(function: Function) -> None:
    moved(function.body.ops, _first(function, SharedFree), function.body.ops.index(_first(function, PrivateFlush)))


def _another_kind(function: Function) -> None:
    flush = _first(function, PrivateFlush)
    assert isinstance(flush, PrivateFlush)
    flush.kind = "max"


def _another_shape(function: Function) -> None:
    update = _first(function, PrivateUpdate)
    assert isinstance(update, PrivateUpdate)
    update.shape = (4, 3)


def _also_directly(function: Function) -> None:
    update = _first(function, PrivateUpdate)
    assert isinstance(update, PrivateUpdate)
    direct = AtomicScatter(operands=[update.tensor, update.tile, *update.indices], kind="add", mask=True)
    body = _first(function, For).regions[0].ops
    body.insert(body.index(update), direct)


def _no_barrier(number: int) -> Callable[[Function], None]:
    def remove(function: Function) -> None:
        barrier = kinds(function, Barrier)[number]
        for block in (function.body, *(region for op in function.body.walk() for region in op.regions)):
            block.ops = [op for op in block.ops if op is not barrier]

    return remove


MISTAKES: dict[str, tuple[Callable[[Function], None], str]] = {
    "an update before the fill": (_update_before_fill, "not filled"),
    "a flush in the loop": (_flush_in_the_loop, "one private_flush, in no loop"),
    "a fill in the loop": (_fill_in_the_loop, "one private_fill, in no loop"),
    "two flushes": (_flush_twice, "one private_flush"),
    "no flush": (_no_flush, "one private_flush"),
    "freed before the flush": (_free_first, "filled, then flushed, then freed"),
    "another kind": (_another_kind, "of one kind and shape"),
    "another shape": (_another_shape, "the extents are the tensor's"),
    "the tensor directly": (_also_directly, "touches a tensor"),
    "no barrier after the fill": (_no_barrier(0), "no barrier"),
    "no barrier before the flush": (_no_barrier(-1), "no barrier"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_refused(name: str, tmp_path: Path) -> None:
    program = Program(extents=(3, 4), shape=(8, 16))
    text = print_function(scheduled(program, tmp_path))
    function = parse_function(text)
    verify(function, SM_90A)
    plant, message = MISTAKES[name]
    plant(function)
    with pytest.raises(VerifyError, match=message):
        verify(function, SM_90A)


@pytest.mark.parametrize("number", [0, -1])
def test_the_machines_find_missing_barriers(number: int, tmp_path: Path) -> None:
    """The block machine and the emulator, which do not know the checks of the schedule."""
    program = Program(extents=(3, 4), shape=(8, 16), blocks=1)
    function, prepared = program.function(tmp_path), scheduled(program, tmp_path)
    _no_barrier(number)(prepared)
    code = lower(prepared, SM_90A)
    with pytest.raises(AssertionError, match="without a barrier"):
        launch(function, code, program.arrays(0), program.dims)
    text = ptx.to_ptx(code.mlir, SM_90A)
    assert not emulate(text, manifest(function, code, SM_90A), program.arrays(0), program.dims, seed=1).clean


def test_an_update_outside_of_the_part_is_a_fault(tmp_path: Path) -> None:
    """Of lowering: a position that no mask stops leaves the part, and the emulator sees it."""
    program = Program(extents=(12,), masked=False, blocks=1)
    function, code = program.function(tmp_path), lower(scheduled(program, tmp_path), SM_90A)
    arrays = program.arrays(0)
    arrays["p0"][:] = 4000
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, {}, seed=0)
    assert not report.clean


def test_one_barrier_before_a_loop(tmp_path: Path) -> None:
    prepared = scheduled(Program(rounds=9), tmp_path)
    loops = [op for op in prepared.body.walk() if isinstance(op, For)]
    assert loops and not any(isinstance(op, Barrier) for loop in loops for op in Block(ops=[loop]).walk())


STRIDED = '''"""How often each number occurs."""
import tilec
from tilec import Atomic, Dim, In, atomic_add, bid, cdiv, grid, i32, f32, load, values


class N(Dim):
    """numbers"""


@tilec.kernel
def k(x: In[i32, N], t: Atomic[f32, 8]):
    grid(6)
    values(x, 0, 8)
    for i in range(bid(0), cdiv(N, 64), 6):
        atomic_add(t, 1.0, at=load(x, i, shape=64, pad=-1), mask=True)
'''


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300, 700])
def test_blocks_without_a_tile_change_nothing(count: int, tmp_path: Path) -> None:
    """Blocks whose loop makes no iteration flush a part that nobody updated; the others may have masked positions alone."""
    path = tmp_path / "k.py"
    path.write_text(STRIDED)
    numbers = np.random.default_rng(count).integers(0, 4, count).astype(np.int32)
    before = np.array([2, 0, -3, 5, 1e-40, -0.0, -1e-40, np.nan], np.float32)
    expected = before.copy()
    np.add.at(expected, numbers, np.float32(1))
    for target in MAIN_TARGETS:
        function = load_kernel(path, {}, root=tmp_path)
        prepared = prepare(load_kernel(path, {}, root=tmp_path), target)
        assert kinds(prepared, PrivateFlush)
        code = lower(prepared, target)
        arrays = {"x": numbers, "t": before.copy()}
        report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, {"N": count}, seed=count)
        assert report.clean and not report.notes
        np.testing.assert_array_equal(report.tensors["t"].view(np.uint32), expected.view(np.uint32))
