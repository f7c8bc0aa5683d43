"""The tile IR of accesses, signatures, launch facts, loops and imports."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from frontend_kernels import compile_body, compile_text, ops_of

import tilec
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel, read_kernel
from tilec.ir import ops
from tilec.ir.core import Access, Value
from tilec.ir.expr import cdiv, const, sym
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import DTYPES, TileType, f32, i32

ROOT = Path(tilec.__file__).parent.parent


def constant_of(value: Value) -> float:
    assert isinstance(value.owner, ops.Constant)
    return value.owner.value


def test_a_tile_index_is_scaled_by_the_shape(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\na = load(x, (2, bid(0), 3), shape=(4, 8, 1), pad=-inf)", "x: In[f32, N, M, 5]")
    (load,) = ops_of(function, ops.Load)
    assert isinstance(load, ops.Load)
    assert load.pad == float("-inf")
    assert constant_of(load.offsets[0]) == 8
    scaled = load.offsets[1].owner
    assert isinstance(scaled, ops.Binary) and scaled.kind == "mul"
    assert isinstance(scaled.operands[0].owner, ops.BlockId) and constant_of(scaled.operands[1]) == 8
    assert constant_of(load.offsets[2]) == 3


@pytest.mark.parametrize("text", ["nan", "-nan", "inf - inf", "float('nan')", "float('-NaN')", "abs(nan)"])
def test_a_nan_is_a_number_without_sign_or_payload(text: str, tmp_path: Path) -> None:
    body = f"grid(N)\na = load(x, bid(0), shape=4, pad={text})\nstore(out, bid(0), where(a > 0, a, {text}), mask=True)"
    function = compile_body(tmp_path, body)
    printed = print_function(function)
    assert "pad = nan" in printed and "value = nan" in printed and "-nan" not in printed
    assert print_function(parse_function(printed)) == printed


def test_names_of_a_nan(tmp_path: Path) -> None:
    text = """import math
import tilec as tl
from tilec import nan
NONE = nan
OTHER = -math.nan
class N(tl.Dim): ...
@tl.kernel
def k(x: tl.In[tl.f32, N], out: tl.Out[tl.f32, N]):
    tl.grid(N)
    a = tl.load(x, tl.bid(0), shape=1)
    b = tl.where(a > 1, NONE, tl.where(a < 2, OTHER, a))
    tl.store(out, tl.bid(0), tl.where(b > 3, tl.nan, tl.where(b < 4, math.nan, b)))
"""
    constants = [op.value for op in ops_of(compile_text(tmp_path, text), ops.Constant) if isinstance(op, ops.Constant)]
    assert [value for value in constants if value != value] == [math.nan] * 4  # one object, so that equal attributes are equal


@pytest.mark.parametrize(("text", "value"), [("min(nan, 2.0)", 2.0), ("max(2.0, nan)", 2.0), ("max(nan, nan)", math.nan)])
def test_a_number_wins_over_a_nan_among_constants(text: str, value: float, tmp_path: Path) -> None:
    text = text.replace("min(", "minimum(").replace("max(", "maximum(")
    (load,) = ops_of(compile_body(tmp_path, f"grid(N)\nstore(out, 0, load(x, 0, shape=1, pad={text}))"), ops.Load)
    assert isinstance(load, ops.Load) and load.pad is not None
    assert load.pad == value or (load.pad != load.pad and value != value)


def test_a_nan_is_no_integer(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0205"):
        compile_body(tmp_path, "grid(N)\nstore(out, 0, f32(load(ids, 0, shape=1, pad=nan)))")


def test_an_offset_is_not_scaled(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\nstore(out, load(x, offset=7, shape=4), offset=-2, mask=True)")
    (load,), (store,) = ops_of(function, ops.Load), ops_of(function, ops.Store)
    assert isinstance(load, ops.Load) and isinstance(store, ops.Store)
    assert constant_of(load.offsets[0]) == 7 and load.pad is None
    assert constant_of(store.offsets[0]) == -2 and store.mask


def test_a_scalar_load_reads_one_element(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\nrow = load(ids, bid(0))\nstore(out, row, 1.0)")
    (load,), (store,) = ops_of(function, ops.Load), ops_of(function, ops.Store)
    assert load.result.type == TileType(i32, (1,))
    assert isinstance(store, ops.Store)
    assert store.offsets[0].type == TileType(i32) and store.offsets[0].name == "row"
    assert store.tile.type == TileType(f32, (1,))


def test_signature(tmp_path: Path) -> None:
    function = compile_body(
        tmp_path,
        "grid(cdiv(N, B), M)\nrequires(N % 8 == 0 and M < pos, not N < 4)\nvalues(ids, 0, N - 1, distinct=True)",
        "x: In[E, N, M, Align[64]], y: InOut[f32, M, 2 * N, Strides[S, 1]], ids: Scratch[i32, 4], pos: i32, eps: f32,"
        " *, E: Const, B: Const",
        {"E": "f16", "B": 128},
    )
    x, y, ids, pos, eps = function.parameters
    assert (x.access, y.access, ids.access, pos.access) == (Access.IN, Access.INOUT, Access.SCRATCH, None)
    assert x.value.tensor.dtype == DTYPES["f16"] and x.value.tensor.align == 64
    assert str(y.value.type) == "tensor<f32, [M, 2 * N], strides [S, 1], align 16>"
    assert eps.value.type == TileType(f32)
    assert function.body.arguments == [p.value for p in function.parameters]
    assert function.dims == ("N", "M", "S") and function.strides == ("S",)
    assert function.grid == (cdiv(sym("N"), const(128)), sym("M"))
    assert [str(r.condition) for r in function.requires] == ["N % 8 == 0 and M < pos", "N >= 4"]
    (fact,) = function.values
    assert (fact.tensor, str(fact.low), str(fact.high), fact.distinct) == ("ids", "0", "N - 1", True)
    assert function.constants == {"E": "f16", "B": 128}


def test_the_grid_may_use_computed_names(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "tiles = cdiv(N, 64)\nhalf = tiles // 2\ngrid(maximum(half, 1), pos)\na = num_blocks(0)")
    assert [str(e) for e in function.grid] == ["max((N + 63) // 64 // 2, 1)", "pos"]


@pytest.mark.parametrize(
    "extent", ["2 * N", '"2 * N"', 'Literal["2 * N"]', "'Literal[\\'2 * N\\']'", 'typing.Literal["2 * N"]']
)
def test_an_extent_that_is_arithmetic_may_be_quoted_for_type_checkers(tmp_path: Path, extent: str) -> None:
    function = compile_body(tmp_path, "grid(1)", f"x: In[f32, N, {extent}], y: In[f32, N, Literal[4]]")
    assert [str(p.value.type) for p in function.parameters] == [
        "tensor<f32, [N, 2 * N], align 16>",
        "tensor<f32, [N, 4], align 16>",
    ]


def test_a_literal_that_is_no_extent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0107"):
        compile_body(tmp_path, "grid(1)", 'x: In[f32, Literal["two times N"]]')


def test_a_constant_dim_is_folded(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\na = load(x, 0, shape=N // 2)", "x: In[f32, N], *, N: Const", {"N": 64})
    assert function.dims == () and function.grid == (const(64),)
    assert ops_of(function, ops.Load)[0].result.tile.shape == (32,)


@pytest.mark.parametrize("size", [64, 128])
def test_launch_facts_may_depend_on_constants(tmp_path: Path, size: int) -> None:
    body = "if B > 64:\n    grid(N)\n    requires(N % 8 == 0)\nelse:\n    grid(1)\na = load(x, 0, shape=B)"
    function = compile_body(tmp_path, body, "x: In[f32, N], *, B: Const", {"B": size})
    assert [len(function.grid), len(function.requires)] == ([1, 1] if size > 64 else [1, 0])
    assert str(function.grid[0]) == ("N" if size > 64 else "1")


def test_launch_facts_may_not_depend_on_what_a_launch_passes(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0109"):
        compile_body(tmp_path, "grid(1)\nif N > 4:\n    requires(N % 8 == 0)", "x: In[f32, N]")


def test_a_static_range_stays_a_loop(tmp_path: Path) -> None:
    body = "grid(N)\nacc = 0.0\nfor step in range(1, 7, 2):\n    acc = acc + eps\nstore(out, bid(0), acc)"
    (loop,) = ops_of(compile_body(tmp_path, body), ops.For)
    assert isinstance(loop, ops.For)
    assert loop.variable == "step"
    assert [constant_of(v) for v in (loop.lower, loop.upper, loop.step)] == [1, 7, 2]
    assert [v.name for v in loop.results] == ["acc"] and [v.name for v in loop.regions[0].arguments] == ["step", "acc"]
    assert loop.loc is not None and loop.loc.line == ops_of(compile_body(tmp_path, body), ops.Store)[0].loc.line - 2  # pyright: ignore


def test_a_persistent_loop_steps_by_the_grid(tmp_path: Path) -> None:
    (loop,) = ops_of(compile_body(tmp_path, "grid(4)\nfor t in range(bid(0), N, num_blocks(0)):\n    pass"), ops.For)
    assert isinstance(loop, ops.For)
    assert isinstance(loop.step.owner, ops.NumBlocks) and isinstance(loop.upper.owner, ops.DimValue)


def test_a_dim_is_read_once(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\nfor i in range(N):\n    if i < N - 1:\n        a = N * i + x.shape[0]")
    assert len(ops_of(function, ops.DimValue)) == 1
    assert isinstance(function.body.ops[0], ops.DimValue)


def test_unsafe_marks_its_accesses(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\na = load(x, 0)\nwith unsafe('checked by hand'):\n    store(out, 0, a)")
    (load,), (store,) = ops_of(function, ops.Load), ops_of(function, ops.Store)
    assert isinstance(load, ops.Load) and isinstance(store, ops.Store)
    assert load.unsafe is None and store.unsafe == 0
    assert [u.reason for u in function.unsafe] == ["checked by hand"]


def test_a_literal_adopts_the_dtype_of_its_tile(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\na = full((2, 4), 1, bf16) * 2 + M", "x: In[f32, N], *, M: Const", {"M": 7})
    assert {op.result.type for op in ops_of(function, ops.Constant)} == {TileType(DTYPES["bf16"], (2, 4))}


def test_broadcasting_is_explicit(tmp_path: Path) -> None:
    function = compile_body(tmp_path, "grid(N)\na = arange(4)[:, None] * zeros(8, i32) + pos")
    kinds = [
        (type(op).__name__, op.result.tile.shape) for op in function.body.walk() if not isinstance(op, ops.Constant | ops.Iota)
    ]
    assert kinds == [
        ("Reshape", (4, 1)), ("Broadcast", (4, 8)), ("Reshape", (1, 8)), ("Broadcast", (4, 8)), ("Binary", (4, 8)),
        ("Broadcast", (4, 8)), ("Binary", (4, 8)),
    ]  # fmt: skip


def test_tile_functions_come_from_files_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("import tilec\nSCALE = 3\n@tilec.function\ndef scaled(v):\n    return v * SCALE\n")
    text = "import tilec\nfrom tilec import *\n".replace(
        "from tilec import *\n", "from tilec import Dim, Out, bid, f32, grid, store\n"
    )
    text += 'from shared import SCALE, scaled\nclass N(Dim): "n"\n@tilec.kernel\ndef k(out: Out[f32, N]):\n    grid(N)\n'
    text += "    store(out, bid(0), scaled(2.0) + SCALE)\n"
    function = compile_text(tmp_path, text)
    (store,) = ops_of(function, ops.Store)
    assert isinstance(store, ops.Store) and constant_of(store.tile) == 9.0
    assert [path.name for path in read_kernel(tmp_path / "k.py").files] == ["k.py", "shared.py"]
    (tmp_path / "shared.py").write_text("import tilec\n")
    with pytest.raises(CompileError, match="E0112"):
        load_kernel(tmp_path / "k.py", {})


@pytest.mark.parametrize("module", ["dims", ".dims"])
def test_dims_and_elements_come_from_other_files(tmp_path: Path, module: str) -> None:
    dims = 'import tilec as tl\nclass E(tl.Element): "e"\nclass N(tl.Dim): "n"\n'
    kernel = "@tl.kernel\ndef k(x: tl.In[E, N], out: tl.Out[E, N], *, E: tl.Const):\n"
    kernel += "    tl.grid(N)\n    tl.store(out, tl.bid(0), tl.load(x, tl.bid(0)))\n"
    alone = compile_text(tmp_path, dims + kernel, {"E": "f16"})
    (tmp_path / "dims.py").write_text(dims)
    shared = compile_text(tmp_path, f"import tilec as tl\nfrom {module} import E, N\n{kernel}", {"E": "f16"})
    assert print_function(shared) == print_function(alone)
    assert [path.name for path in read_kernel(tmp_path / "k.py").files] == ["k.py", "dims.py"]


def test_spans_are_relative_to_the_root(tmp_path: Path) -> None:
    compile_body(tmp_path, "grid(N)")
    function = load_kernel(tmp_path / "k.py", {}, root=tmp_path)
    assert function.loc is not None and function.loc.file == "k.py"


def test_read_kernel_needs_no_constants(tmp_path: Path) -> None:
    compile_body(tmp_path, "grid(N)", "x: In[E, N], eps: f32, *, E: Const, B: Const", {"E": "f16", "B": 3})
    source = read_kernel(tmp_path / "k.py")
    assert (source.name, source.constants, source.elements) == ("k", ("E", "B"), ("E",))
    assert source.parameters == (("x", "In[E, N]"), ("eps", "f32"))


def test_shipped_kernels_import_as_plain_python() -> None:
    kernels = sorted(path.stem for path in (ROOT / "kernels_src").glob("*.py"))
    code = "import importlib, sys\nsys.path.insert(0, 'kernels_src')\n"
    code += f"for name in {kernels}: importlib.import_module(f'kernels_src.{{name}}')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_vocabulary_imports_nothing_heavy() -> None:
    code = (
        "import sys, tilec; print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'networkx', 'islpy', 'torch_mlir')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "[]"
