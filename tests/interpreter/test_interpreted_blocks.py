"""Whole kernels on the interpreter: memory at edges, control flow, contracts, block order, and access checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function

HEAD = """import tilec
from tilec import Atomic, Dim, In, InOut, Out, Scratch, Strides, atomic_add, bid, cdiv, ensures, f32, full, gather
from tilec import grid, i32, load, num_blocks, requires, scatter, store, values

class N(Dim): \"\"\"elements\"\"\"
class M(Dim): \"\"\"rows\"\"\"
class K(Dim): \"\"\"columns\"\"\"
class S(Dim): \"\"\"stride\"\"\"

@tilec.kernel
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Any:
    """Builds a function from the text of a kernel, with its constants."""

    def make(text: str, **constants: Any) -> Function:
        (tmp_path / "k.py").write_text('"""k"""\n' + HEAD + text, encoding="utf-8")
        return load_kernel(tmp_path / "k.py", constants)

    return make


def test_a_load_past_both_edges_pads(kernel: Any) -> None:
    function = kernel("""def k(x: In[f32, N], out: Out[f32, 8]):
    grid(1)
    store(out, 0, load(x, offset=(-2,), shape=8, pad=7))
""")
    out = np.zeros(8, np.float32)
    run(function, {"x": np.arange(3, dtype=np.float32), "out": out})
    assert out.tolist() == [7, 7, 0, 1, 2, 7, 7, 7]


def test_a_masked_store_stays_inside(kernel: Any) -> None:
    function = kernel("""def k(out: InOut[i32, M, K]):
    grid(1)
    store(out, full((4, 4), 5, i32), offset=(-1, 2), mask=True)
""")
    out = np.zeros((5, 4), np.int32)
    run(function, {"out": out})
    assert out.tolist() == [[0, 0, 5, 5], [0, 0, 5, 5], [0, 0, 5, 5], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_an_access_outside_names_the_block_and_the_element(kernel: Any) -> None:
    function = kernel("""def k(x: In[f32, N], out: Out[f32, N]):
    grid(cdiv(N, 4))
    store(out, bid(0), load(x, bid(0), shape=4), mask=True)
""")
    with pytest.raises(InterpreterError, match=r"load touches `x\[6\]`, axis 0 has 6 elements in block \(1\)"):
        run(function, {"x": np.zeros(6, np.float32), "out": np.zeros(6, np.float32)})


GATHER = """def k(x: In[f32, N, K], ids: In[i32, 4], out: Out[f32, 4]):
    grid(1)
    i = load(ids, 0, shape=4)
    store(out, 0, gather(x, (i, i){pad}))
"""


def test_gather(kernel: Any) -> None:
    x, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(4, np.float32)
    run(kernel(GATHER.format(pad="")), {"x": x, "ids": np.array([2, 0, 1, 2], np.int32), "out": out})
    assert out.tolist() == [10, 0, 5, 10]
    outside = np.array([3, 0, -1, 2], np.int32)
    run(kernel(GATHER.format(pad=", pad=9")), {"x": x, "ids": outside, "out": out})
    assert out.tolist() == [9, 0, 9, 10]
    with pytest.raises(InterpreterError, match=r"gather touches `x\[3, 3\]`"):
        run(kernel(GATHER.format(pad="")), {"x": x, "ids": outside, "out": out})


def test_scatter_and_atomics(kernel: Any) -> None:
    function = kernel("""def k(ids: In[i32, 4], y: InOut[i32, N], total: Atomic[f32, 1]):
    grid(3)
    i = load(ids, 0, shape=4)
    scatter(y, (i,), full((4,), 1, i32), mask=True)
    atomic_add(total, 0, full((1,), 2.0, f32))
""")
    y, total = np.zeros(3, np.int32), np.zeros(1, np.float32)
    run(function, {"ids": np.array([0, 2, 5, -1], np.int32), "y": y, "total": total})
    assert y.tolist() == [1, 0, 1]
    assert total.tolist() == [6.0]


LOOP = """def k(x: In[i32, N], out: Out[i32, 2]):
    grid(1)
    total, last = 0, -1
    for i in range(1, N, 2):
        v = load(x, i)
        if v > 3:
            total = total + v
            last = i
        else:
            total = total - 1
    store(out, 0, full((1,), total, i32))
    store(out, 1, full((1,), last, i32))
"""


@pytest.mark.parametrize("values", [[9], [1, 5, 2, 3, 0, 7], [0, 4, 0, 4]])
def test_loops_carry_and_branches_choose(kernel: Any, values: list[int]) -> None:
    total, last = 0, -1
    for i in range(1, len(values), 2):
        total, last = (total + values[i], i) if values[i] > 3 else (total - 1, last)
    out = np.zeros(2, np.int32)
    run(kernel(LOOP), {"x": np.array(values, np.int32), "out": out})
    assert out.tolist() == [total, last]


PERSISTENT = """def k(x: In[i32, N], out: Out[i32, N]):
    grid(3)
    for t in range(bid(0), N, num_blocks(0)):
        store(out, t, load(x, t, shape=1) * 2)
"""


def test_persistent_loops_in_any_order_of_blocks(kernel: Any) -> None:
    x = np.arange(10, dtype=np.int32)
    for order in ([(0,), (1,), (2,)], [(2,), (0,), (1,)]):
        function, out = kernel(PERSISTENT), np.full(10, -1, np.int32)
        accesses = Accesses(function, {"x": x, "out": out})
        run(function, {"x": x, "out": out}, block_order=order, accesses=accesses)
        assert (out == 2 * x).all()
        assert accesses.problems() == []
    function, out = kernel(PERSISTENT), np.full(10, -1, np.int32)
    accesses = Accesses(function, {"x": x, "out": out})
    run(function, {"x": x, "out": out}, block_order=[(0,), (2,)], accesses=accesses)
    assert accesses.problems() == ["`out[1]` is written by no block"]
    with pytest.raises(InterpreterError, match="no block"):
        run(function, {"x": x, "out": out}, block_order=[(3,)])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("store(out, 0, load(x, bid(0), shape=1))", "`out[0]` is written by two blocks"),
        (
            "store(out, bid(0), load(y, cdiv(bid(0), 2), shape=1)); store(y, bid(0), load(x, 0, shape=1))",
            "`y[1]` is written by one",
        ),
        (
            "store(out, bid(0), load(x, 0, shape=1)); store(out, bid(0), load(x, 0, shape=1))",
            "`out[0]` is written more than once",
        ),
        (
            "store(out, bid(0), load(z, bid(0), shape=1)); store(z, bid(0), load(x, 0, shape=1))",
            "`z[0]` is read before its block",
        ),
    ],
)
def test_races_gaps_and_early_reads_are_reported(kernel: Any, body: str, message: str) -> None:
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    function = kernel(f"def k(x: In[i32, N], y: InOut[i32, N], z: Scratch[i32, N], out: Out[i32, N]):\n    grid(N)\n{lines}\n")
    arrays = {name: np.arange(4, dtype=np.int32) for name in ("x", "y", "z", "out")}
    accesses = Accesses(function, arrays)
    run(function, arrays, accesses=accesses)
    assert any(problem.startswith(message) for problem in accesses.problems()), accesses.problems()


STRIDED = """def k(x: In[f32, M, K, Strides[S, 1]], out: Out[f32, M, K]):
    grid(M)
    store(out, (bid(0), 0), load(x, (bid(0), 0), shape=(1, 4)))
"""


def test_strides(kernel: Any) -> None:
    array, out = np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((3, 4), np.float32)
    run(kernel(STRIDED), {"x": array[:, 2:6], "out": out})
    assert (out == array[:, 2:6]).all()
    with pytest.raises(InterpreterError, match="`x`: axis 1 has the stride 2 instead of 1"):
        run(kernel(STRIDED), {"x": array[:, ::2], "out": out})
    with pytest.raises(InterpreterError, match="`out`: is not row-major"):
        run(kernel(STRIDED), {"x": array[:, 2:6], "out": np.zeros((4, 3), np.float32).T})


CONTRACT = """def k(x: In[f32, N], ids: In[i32, M], out: Out[f32, N], n: i32):
    grid(N)
    requires(N % 4 == 0 and n < N)
    values(ids, 0, N, distinct=True)
    store(out, bid(0), load(x, bid(0), shape=1))
"""


ROWS = """def k(ids: In[i32, N, 2], out: Out[i32, N, 2]):
    grid(N)
    values(ids, 0, 9, distinct_in_rows=True)
    ensures(out, 0, 9, distinct_in_rows=True)
    store(out, (bid(0), 0), load(ids, (bid(0), 0), shape=(1, 2)) {change})
"""


def test_numbers_of_a_row_differ_before_and_after(kernel: Any) -> None:
    """Rows may share numbers. What is declared is checked before blocks run, and what is promised when all have."""
    out = np.zeros((3, 2), np.int32)
    right = np.array([[1, 8], [8, 1], [0, 1]], np.int32)
    run(kernel(ROWS.format(change="")), {"ids": right, "out": out})
    assert (out == right).all()
    with pytest.raises(InterpreterError, match="`ids` holds a value twice in a row"):
        run(kernel(ROWS.format(change="")), {"ids": np.array([[1, 8], [7, 7], [0, 1]], np.int32), "out": out})
    with pytest.raises(InterpreterError, match="`out` holds a value twice in a row"):
        run(kernel(ROWS.format(change="// 2")), {"ids": right, "out": out})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": np.zeros(4, np.float32)}, "`out`: axis 0 has 4 elements instead of 8 = N"),
        ({"x": np.zeros(8, np.float64)}, "`x`: holds float64, the kernel takes f32"),
        ({"x": np.zeros((8, 1), np.float32)}, "`x`: has 2 axes, the kernel takes 1"),
        ({"ids": np.array([1, 8], np.int32)}, r"`ids` holds 8, and not 0 <= value < 8"),
        ({"ids": np.array([1, 1], np.int32)}, "`ids` holds a value twice"),
        ({"n": 8}, r"`requires\(.*\)` is broken \(N = 8, n = 8\)"),
        ({"n": 2**31}, "`n`: 2147483648 does not fit i32"),
        ({"y": np.zeros(1)}, "no array parameter `y`"),
        ({"x": None}, "the array `x` is missing"),
    ],
)
def test_a_broken_contract_names_the_argument(kernel: Any, changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": np.zeros(8, np.float32), "ids": np.array([1, 2], np.int32), "out": np.zeros(8, np.float32), "n": 3,
    }  # fmt: skip
    good = dict(arguments)
    run(kernel(CONTRACT), {k: v for k, v in good.items() if k != "n"}, {"n": 3})
    arguments = {key: value for key, value in (arguments | changes).items() if value is not None}
    scalars = {"n": arguments.pop("n")}
    with pytest.raises(InterpreterError, match=message):
        run(kernel(CONTRACT), arguments, scalars)
