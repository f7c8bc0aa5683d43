"""Products computed per thread: threads load exactly the fragments that their instructions multiply, without a layout
conversion through shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, VerifyError
from tilec.ir.layouts.blocked_layouts import vector_length
from tilec.ir.ops import For, Load, Mma
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.ir.verifier import verify
from tilec.passes.schedule import prepare
from tilec.target.schedule import Role, Schedule
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

SHIPPED = Path(__file__).resolve().parents[2] / "kernels_src"
FORM: dict[str, Any] = {"E": "bf16", "B": 8, "K": 1024, "ROWS": 16, "SPLIT": 4, "BLOCK": 64}


def prepared(target: Target = SM_90A, warps: int = 4, early: int | None = 2, **constants: Any) -> Function:
    root = SHIPPED.parent
    function = load_kernel(SHIPPED / "scaled_matvec_rows.py", {**FORM, **constants}, root=root)
    return prepare(function, target, Schedule((Role("all", warps),), early=early))


def operands(function: Function) -> list[Load]:
    """The loads of the products' operands."""
    return [op for op in function.body.walk() if isinstance(op, Load) and function.parameter_of(op.source).name in ("x", "w")]


@pytest.mark.parametrize("batch", [2, 4, 8])
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_operands_are_loaded_in_full_vectors_and_not_converted_between_threads(target: Target, batch: int) -> None:
    function = prepared(target, B=batch)
    for load in operands(function):
        assert load.result.layout is not None
        assert vector_length(load.result.layout, 8) == 8
        assert load.vector == 16
    products = [op for op in function.body.walk() if isinstance(op, Mma)]
    last = products[-1].result
    before: list[Any] = []
    for op in function.body.walk():
        before.append(op)
        if last in op.results:
            break
    assert len(products) == 3  # two peeled iterations, and the loop's
    assert not any(isinstance(op, ScratchStore) and op.operands[1].tile.dtype.bits == 16 for op in before)


@pytest.mark.parametrize("split", [(4, 128), (8, 64), (8, 128)])
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_weights_of_eight_bits_are_loaded_in_full_vectors_and_converted_where_they_are(
    target: Target, split: tuple[int, int]
) -> None:
    constants: dict[str, Any] = {"E": "bf16", "B": 8, "K": 4096, "ROWS": 16, "SPLIT": split[0], "BLOCK": split[1]}
    function = load_kernel(SHIPPED / "scaled_matvec_rows_fp8.py", constants, root=SHIPPED.parent)
    prepare(function, target, Schedule((Role("all", 4),), early=2))
    for load in operands(function):
        assert load.result.layout is not None
        assert vector_length(load.result.layout, 16) == 16  # of weights and of activations alike
        assert load.vector == 16
    ops = list(function.body.walk())
    products = [op for op in ops if isinstance(op, Mma)]
    assert len(products) == 3  # two peeled iterations, and the loop's
    exchanged = [op.operands[1] for op in ops[: ops.index(products[-1])] if isinstance(op, ScratchStore)]
    assert not exchanged  # neither operands nor scales


def test_operands_whose_depth_has_no_vectors_of_eight_bits_keep_those_of_sixteen(tmp_path: Path) -> None:
    path = written(tmp_path, 2, 32, 8)
    path.write_text(
        path.read_text()
        .replace("a: In[bf16", "a: In[f8e4m3")
        .replace("shape=(2, 16, 32))", "shape=(2, 16, 32)).astype(bf16)")
        .replace("bf16, f32", "bf16, f8e4m3, f32")
    )
    function = load_kernel(path, {}, root=tmp_path)
    prepare(function, SM_90A, Schedule((Role("all", 2),)))
    (load,) = (op for op in function.body.walk() if isinstance(op, Load) and function.parameter_of(op.source).name == "a")
    assert load.result.layout is not None
    assert vector_length(load.result.layout, 16) == 8
    exchanged = [op.operands[1].tile.shape for op in function.body.walk() if isinstance(op, ScratchStore)]
    assert exchanged == [(2, 32, 8), (2, 16, 8)]  # the right operand, whose rows are not along its depth, and the result


def test_weights_of_the_first_iterations_do_not_wait() -> None:
    for early in (0, 1, 4):
        function = prepared(early=early)
        wait = next(index for index, op in enumerate(function.body.ops) if isinstance(op, DependencyWait))
        names = [function.parameter_of(op.source).name for op in function.body.ops[:wait] if isinstance(op, Load)]
        assert names == ["w"] * early


INT4: dict[str, dict[str, Any]] = {
    "scaled_matvec_int4": {"K": 2560}, "scaled_matvec_silu_mul_int4": {"K": 2560}, "matvec_add_scaled_int4": {"K": 4096},
}  # fmt: skip


@pytest.mark.parametrize("name", INT4)
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_threads_load_what_their_own_elements_of_a_computed_operand_follow_from(target: Target, name: str) -> None:
    """Words in full vectors, a scale and a zero point for each row of the fragment; nothing moves between threads."""
    constants: dict[str, Any] = {"E": "bf16", "F": "bf16", "ROWS": 16, "SPLIT": 4, **INT4[name]}
    function = load_kernel(SHIPPED / f"{name}.py", constants, root=SHIPPED.parent)
    prepare(function, target, Schedule((Role("all", 4),), early=2))
    loads = [op for op in function.body.walk() if isinstance(op, Load)]
    of = {
        part: [op for op in loads if function.parameter_of(op.source).name == part]
        for part in ("w", "w_scales", "w_zeros", "x")
    }
    assert all(load.vector == 16 and load.result.layout for part in ("w", "x") for load in of[part])
    assert all(vector_length(load.result.layout, 4) == 4 for load in of["w"] if load.result.layout)
    assert all(load.result.layout and load.result.layout.num_registers == 2 for load in (*of["w_scales"], *of["w_zeros"]))
    assert len(of["w"]) == len(of["w_scales"]) == len(of["w_zeros"]) == (6 if "silu" in name else 3)  # two peeled, the loop's
    products = [op for op in function.body.walk() if isinstance(op, Mma)]
    before: list[Any] = []
    for op in function.body.walk():
        before.append(op)
        if products[-1].result in op.results:
            break
    assert not any(isinstance(op, ScratchStore) for op in before)


@pytest.mark.parametrize(("warps", "rows", "split"), [(4, 16, 4), (2, 16, 4), (8, 32, 4), (4, 64, 1), (1, 16, 4)])
def test_warps_share_products_or_their_rows(warps: int, rows: int, split: int) -> None:
    function = prepared(warps=warps, ROWS=rows, SPLIT=split)
    verify(function)
    products = [op for op in function.body.walk() if isinstance(op, Mma)]
    assert all(op.result.layout and op.result.layout.problem(op.result.tile.shape, warps) is None for op in products)


@pytest.mark.parametrize(("warps", "rows", "block"), [(3, 16, 64), (8, 16, 64), (4, 8, 64), (4, 16, 24)])
def test_products_without_an_instruction_are_refused(warps: int, rows: int, block: int) -> None:
    constants: dict[str, Any] = {"ROWS": rows, "BLOCK": block, "K": 4 * block * 4}
    with pytest.raises(CompileError) as error:
        prepared(warps=warps, **constants)
    (found,) = error.value.diagnostics
    assert found.code == "E0506"
    assert found.message.startswith("no 4 products of shape")


KERNEL = """
from typing import Literal

import tilec
from tilec import In, Out, bf16, f32, grid, load, mma, store, zeros

@tilec.kernel
def side_by_side(
    a: In[bf16, Literal[2], Literal[16], Literal[32]], b: In[bf16, {b}], out: Out[f32, Literal[2], Literal[16], Literal[8]]
):
    grid(1)
    left, right = load(a, (0, 0, 0), shape=(2, 16, 32)), load(b, ({zeros}), shape=({shape}))
    store(out, (0, 0, 0), mma(left, right, zeros((2, 16, 8), f32)))
"""


def written(folder: Path, *shape: int) -> Path:
    path = folder / "side_by_side.py"
    literals = ", ".join(f"Literal[{extent}]" for extent in shape)
    text = KERNEL.format(b=literals, zeros=", ".join("0" for _ in shape), shape=", ".join(map(str, shape)))
    path.write_text(text)
    return path


def test_batched_products_are_as_many_products(tmp_path: Path) -> None:
    function = load_kernel(written(tmp_path, 2, 32, 8), {}, root=tmp_path)
    random = np.random.default_rng(3)
    a, b = (random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((2, 16, 32), (2, 32, 8)))
    arrays = {"a": a, "b": b, "out": np.full((2, 16, 8), np.nan, np.float32)}
    run(function, arrays, {})
    for one in range(2):
        assert np.allclose(arrays["out"][one], a[one].astype(np.float64) @ b[one].astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "code", "message"),
    [
        ((3, 32, 8), "E0202", "2 products and 3"),
        ((2, 16, 8), "E0202", "inner extents differ: 32 and 16"),
        ((32, 8), "E0206", "a matrix product takes two matrices"),
    ],
)
def test_products_that_do_not_match_are_refused(tmp_path: Path, shape: tuple[int, ...], code: str, message: str) -> None:
    with pytest.raises(CompileError) as error:
        load_kernel(written(tmp_path, *shape), {}, root=tmp_path)
    assert error.value.diagnostics[0].code == code
    assert message in error.value.diagnostics[0].message


def test_the_verifier_refuses_products_of_other_numbers(tmp_path: Path) -> None:
    function = load_kernel(written(tmp_path, 2, 32, 8), {}, root=tmp_path)
    product = next(op for op in function.body.walk() if isinstance(op, Mma))
    product.operands[1] = product.operands[0]
    with pytest.raises(VerifyError, match=r"shapes are \(M, K\), \(K, N\), \(M, N\)"):
        verify(function)


ATTENTION: dict[str, Any] = {"E": "bf16", "G": 4, "D": 128, "BN": 128, "SLOTS": 32}


@pytest.mark.parametrize("name", ["rotary_decode_attention_c8", "rope_decode_attention_c8"])
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_codes_that_a_loop_carries_are_loaded_as_products_take_them(target: Target, name: str) -> None:
    """The first tile, before the wait, and in each iteration the next one; no code passes between threads."""
    function = load_kernel(SHIPPED / f"{name}.py", ATTENTION, root=SHIPPED.parent)
    prepare(function, target, Schedule((Role("all", 4),), blocks=2, early=0))
    ops = list(function.body.walk())
    loads = [op for op in ops if isinstance(op, Load) and function.parameter_of(op.source).name in ("k_cache", "v_cache")]
    assert len(loads) % 3 == 0 and len(loads) >= 6  # halves of keys, and values
    for load in loads:
        assert load.result.layout is not None
        assert vector_length(load.result.layout, 16) == 16
        assert load.vector == 16
    loops = [op for op in ops if isinstance(op, For)]
    for loop in loops:
        carried = [value for value in loop.initial if value.tile.dtype.bits == 8]
        following = [value for value in loop.regions[0].ops[-1].operands if value.tile.dtype.bits == 8]
        assert len(carried) == len(following) == 3
        loaded = [value.owner for value in following if isinstance(value.owner, Load)]
        assert len(loaded) == 3 and all(isinstance(value.owner, Load) for value in carried)
        assert [value.layout for value in carried] == [value.layout for value in following]
        inner = list(loop.regions[0].walk())
        assert not any(isinstance(op, ScratchStore) and op.operands[1].tile.dtype.bits == 8 for op in inner)
        assert max(map(inner.index, [op for op in inner if isinstance(op, Mma)])) < inner.index(loaded[0])
    wait = next(index for index, op in enumerate(ops) if isinstance(op, DependencyWait))
    first = [value.owner for value in loops[0].initial if value.tile.dtype.bits == 8 and isinstance(value.owner, Load)]
    assert len(first) == 3 and all(ops.index(op) < wait for op in first)
