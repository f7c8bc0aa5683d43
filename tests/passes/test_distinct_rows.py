"""Integers of one row that differ: who promises it is shown to keep it, and who declares it may rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.artifact.records import to_json
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import InterpreterError, run
from tilec.ir.core import Function
from tilec.ir.expr import const
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import VerifyError, verify
from tilec.passes.prover import prove, sorted_parts

HEAD = """import tilec
from tilec import (Dim, In, InOut, Out, arange, argsort, bid, ensures, f32, gather, grid, i32, load, maximum, minimum, requires,
                   scatter, sort, store, u32, values, where, zeros)

class T(Dim):
    pass

class N(Dim):
    pass

@tilec.kernel
"""
ROW = """def k(x: In[i32, T, {width}], out: {access}[i32, T, {count}]):
    grid(T)
    values(x, 0, 3)
    ensures(out, 0, {high}, distinct_in_rows=True)
    v = load(x, (bid(0), 0), shape=(1, {width}))
    i = arange({width})[None, :]
"""
STORE = "store(out, (bid(0), 0), {}, mask=True)"


def kernel(folder: Path, text: str) -> Function:
    (folder / "k.py").write_text(HEAD + text)
    return load_kernel(folder / "k.py", {}, root=folder)


def in_a_row(folder: Path, lines: str, *, width: int = 4, count: int = 4, high: int = 4, access: str = "Out") -> Function:
    """A kernel that stores one row of `count` numbers below `high`, from `width` loaded ones."""
    body = "".join(f"    {line}\n" for line in lines.split("\n"))
    return kernel(folder, ROW.format(width=width, count=count, high=high, access=access) + body)


def refused(function: Function) -> set[str]:
    with pytest.raises(CompileError) as found:
        prove(function)
    return {one.code for one in found.value.diagnostics}


def breaks(function: Function) -> bool:
    """Whether a launch breaks the promise, for some of many contents."""
    r = np.random.default_rng(5)
    shapes = {p.name: [dim.evaluate({"T": 3}) for dim in p.value.tensor.dims] for p in function.parameters}
    for _ in range(60):
        arrays: dict[str, Any] = {name: r.integers(0, 3, shape).astype(np.int32) for name, shape in shapes.items()}
        try:
            run(function, arrays)
        except InterpreterError as error:
            assert "holds a value twice in a row" in str(error)
            return True
    return False


KEPT = {
    "numbers in keys": (f"k = sort(v * 4 + i, 1)\n{STORE.format('k % 4')}", {}),
    "the largest first": (f"k = sort(v * 4 + 3 - i, 1, descending=True)\n{STORE.format('3 - k % 4')}", {}),
    "the first of them": (f"k = sort(v * 8 + i, 1)\n{STORE.format('k % 8')}", {"width": 8, "count": 2, "high": 8}),
    "keys of more room": (f"k = sort(v * 64 + i * 16, 1)\n{STORE.format('k // 16 % 4')}", {}),
    "without a sign": (
        f"k = sort(v.astype(u32) * 65536 + i.astype(u32), 1)\n{STORE.format('(k % 65536).astype(i32)')}", {"high": 65536}
    ),
    "a permutation": (STORE.format("argsort(v, 1)"), {}),
    "lanes": (STORE.format("i ^ 1"), {}),
    "each iteration": ("for j in range(4):\n    store(out, (bid(0), 3 - j), j)", {}),
    "twice the same": (
        f"k = sort(v * 4 + i, 1) % 4\n{STORE.format('k')}\n{STORE.format('k')}", {"access": "InOut"}
    ),
    "a part above the others": (
        f"c = where(i < 3, maximum(v, 1), 0)\nk = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}",
        {"count": 2},
    ),
    "a part below the others": (
        f"c = where(i < 3, minimum(v, 1), 2)\nk = sort(c * 4 + i, 1)\n{STORE.format('minimum(k % 4, 2)')}", {"count": 2}
    ),
    "the last part above the others": (
        f"c = where(i < 1, 0, maximum(v, 1))\nk = sort(c * 4 + i, 1, descending=True)\n{STORE.format('maximum(k % 4, 1)')}",
        {"count": 2},
    ),
    "a part above by a number of the row": (
        "w = minimum(maximum(load(x, (bid(0), 0)).astype(f32).astype(i32), 0), 3)\nc = where(i < 3, v + w + 1, w)\n"
        f"k = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}", {"count": 2},
    ),
    "declared numbers decide": (
        f"c = where(i < 3, v + 1, 0)\nk = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}",
        {"count": 2},
    ),
}  # fmt: skip
"""What keeps its promise, and is shown to."""
BROKEN = {
    "keys without numbers": (f"k = sort(v, 1)\n{STORE.format('k % 4')}", {}),
    "keys that tie": (f"k = sort(v * 4 + i // 2, 1)\n{STORE.format('k % 4')}", {}),
    "keys of too few bits": (f"k = sort(v * 2 + i, 1)\n{STORE.format('k % 4')}", {}),
    "numbers cut off": (f"k = sort(v * 4 + i, 1)\n{STORE.format('k % 2')}", {}),
    "numbers shifted out": (f"k = sort(v * 4 + i, 1)\n{STORE.format('k // 2 % 4')}", {}),
    "the upper digits": (f"k = sort(v * 4 + i, 1)\n{STORE.format('k // 4')}", {}),
    "clamped": (f"k = sort(v * 4 + i, 1)\n{STORE.format('minimum(k % 4, 2)')}", {}),
    "a number of another position": (f"k = sort(v * 4 + i, 1)\n{STORE.format('(k + i) % 4')}", {}),
    "modulo of the position": (STORE.format("i % 3"), {}),
    "modulo after a step": (STORE.format("i * 2 % 4"), {}),
    "what was loaded": (STORE.format("v"), {}),
    "sums": (STORE.format("v + i"), {"high": 6}),
    "a second store of half a row": (
        f"{STORE.format('i')}\nscatter(out, (bid(0), arange(2)), 3 - arange(2))", {"access": "InOut"}
    ),
    "a store of one element after it": (f"{STORE.format('i')}\nstore(out, (bid(0), 0), 3)", {"access": "InOut"}),
    "a store in a loop": (
        "for j in range(4):\n    store(out, (bid(0), j), (j + load(x, (bid(0), j))) % 4)", {}
    ),
    "a number that a loop forgets": ("for j in range(4):\n    store(out, (bid(0), j), j // 2)", {}),
    "a number that a loop carries": (
        "c = i32(0)\nfor j in range(4):\n    store(out, (bid(0), j), minimum(maximum(c, 0), 3))\n"
        "    c = minimum(c + load(x, (bid(0), j)), 3)", {},
    ),
    "a part that ties with the others": (
        f"c = where(i < 3, v, 1)\nk = sort(c * 4 + 3 - i, 1, descending=True)\n{STORE.format('minimum(3 - k % 4, 2)')}",
        {"count": 2},
    ),
    "a part with smaller numbers": (
        f"c = where(i < 3, v, 0)\nk = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}", {"count": 2},
    ),
    "a part above by a number of each position": (
        "w = minimum(maximum(v.astype(f32).astype(i32), 0), 3)\nc = where(i < 3, w + 1, w)\n"
        f"k = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}", {"count": 2},
    ),
    "a part sorted to the end": (
        f"c = where(i < 3, maximum(v, 1), 0)\nk = sort(c * 4 + i, 1)\n{STORE.format('minimum(k % 4, 2)')}", {"count": 4},
    ),
    "more than a part": (
        f"c = where(i < 3, maximum(v, 1), 0)\nk = sort(c * 4 + i, 1, descending=True)\n{STORE.format('minimum(k % 4, 2)')}", {},
    ),
}  # fmt: skip
"""What breaks its promise for some contents."""


@pytest.mark.parametrize("name", KEPT)
def test_a_promise_that_is_kept_is_shown(name: str, tmp_path: Path) -> None:
    lines, shape = KEPT[name]
    function = in_a_row(tmp_path, lines, **shape)
    prove(function)
    assert not breaks(function)


@pytest.mark.parametrize("name", BROKEN)
def test_a_promise_that_is_broken_is_refused(name: str, tmp_path: Path) -> None:
    """The interpreter finds contents for which it is, so that none of them is wrong in appearance only."""
    lines, shape = BROKEN[name]
    function = in_a_row(tmp_path, lines, **shape)
    assert refused(function) <= {"E0406", "E0306"}
    assert breaks(function)


def test_parts_that_nobody_shows_to_be_apart_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison of keys across a boundary, a sort would seem to take elements from where it does not."""
    cases = [name for name in BROKEN if name.startswith("a part")]
    functions = [in_a_row(tmp_path, BROKEN[name][0], **BROKEN[name][1]) for name in cases]
    monkeypatch.setattr(sorted_parts, "_boundaries", lambda key, lane: [3])
    assert all(map(refused, functions)), "what is tried decides nothing"
    monkeypatch.setattr(sorted_parts, "_parts", lambda *_: [(3, True, "")])
    accepted = 0
    for function in functions:
        try:
            prove(function)
            accepted += 1
        except CompileError:
            pass
    assert accepted >= 2


def test_numbers_of_each_position_that_are_taken_for_one_of_the_row_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, shape = BROKEN["a part above by a number of each position"]
    function = in_a_row(tmp_path, lines, **shape)
    refused(function)
    monkeypatch.setattr(sorted_parts, "_is_of_the_row", lambda *_: True)
    prove(function)


WHOLE = """def k(x: In[i32, T, N], out: Out[i32, {dims}]):
    grid(T, N)
    values(x, 0, {high}{flags})
    ensures(out, 0, {high}, {word}=True)
    t, n = bid(0), bid(1)
    store(out, ({index}), load(x, ({source})))
"""


@pytest.mark.parametrize(
    ("flags", "word", "index", "source", "is_kept"),
    [
        ("distinct_in_rows", "distinct_in_rows", "t, n", "t, n", True),
        ("distinct", "distinct_in_rows", "t, n", "t, n", True),
        ("distinct_in_rows", "distinct_in_rows", "t, n", "T - 1 - t, n", True),
        ("distinct_in_rows", "distinct_in_rows", "t, N - 1 - n", "t, n", True),
        ("distinct_in_rows", "distinct", "t, n", "t, n", False),
        ("", "distinct_in_rows", "t, n", "t, n", False),
        ("distinct_in_rows", "distinct_in_rows", "n, t", "t, n", False),
        ("distinct", "distinct_in_rows", "n, t", "t, n", True),
        ("distinct_in_rows", "distinct_in_rows", "t, n", "t, n // 2", False),
    ],
)
def test_rows_of_another_tensor(tmp_path: Path, flags: str, word: str, index: str, source: str, is_kept: bool) -> None:
    dims = "N, T" if index == "n, t" else "T, N"
    high = "4 * 4" if flags == "distinct" else "5"
    text = WHOLE.format(dims=dims, high=high, flags=f", {flags}=True" if flags else "", word=word, index=index, source=source)
    function = kernel(tmp_path, text)
    if is_kept:
        prove(function)
    else:
        assert refused(function) == {"E0406"}


PUT = """def k(columns: In[i32, T, 4], x: In[f32, T, 4], out: InOut[f32, T, N]):
    {grid}
    values(columns, 0, N{flags})
    t = bid(0)
    {store}
"""
BY_BLOCKS = ("grid(T, 4)", "store(out, (t, load(columns, (t, bid(1)))), load(x, (t, bid(1))))", "E0401")
IN_A_TILE = (
    "grid(T)", "scatter(out, (t + 0 * arange(4), gather(columns, (t, arange(4)))), gather(x, (t, arange(4))))", "E0404",
)  # fmt: skip


@pytest.mark.parametrize(("grid", "store", "code"), [BY_BLOCKS, IN_A_TILE], ids=["blocks", "tile"])
def test_a_reader_writes_each_column_of_a_row_once(tmp_path: Path, grid: str, store: str, code: str) -> None:
    """A store by expert within a row has no race where the experts of a row differ; in another row it may have one."""
    right = kernel(tmp_path, PUT.format(grid=grid, store=store, flags=", distinct_in_rows=True"))
    races = [one for one in prove(right).obligations if one.property == "race"]
    assert "value" in {one.rung for one in races}
    assert {one.facts for one in races if one.rung == "value"} == {("values(columns, 0, N, distinct_in_rows=True)",)}
    assert refused(kernel(tmp_path, PUT.format(grid=grid, store=store, flags=""))) == {code}
    other = store.replace("(out, (t", "(out, (t // 2")
    assert refused(kernel(tmp_path, PUT.format(grid=grid, store=other, flags=", distinct_in_rows=True"))) == {"E0401"}
    arrays: dict[str, Any] = {
        "columns": np.array([[0, 3, 5, 1], [5, 0, 1, 2]], np.int32), "x": np.arange(8, dtype=np.float32).reshape(2, 4) + 1,
        "out": np.zeros((2, 6), np.float32),
    }  # fmt: skip
    run(right, arrays)
    assert arrays["out"].tolist() == [[1, 4, 0, 2, 0, 3], [6, 7, 8, 0, 0, 5]]
    arrays["columns"][1, 3] = 5
    with pytest.raises(InterpreterError, match="`columns` holds a value twice in a row"):
        run(right, arrays)


def test_a_race_that_distinct_rows_would_prevent_names_them(tmp_path: Path) -> None:
    """The weaker declaration is proposed where it suffices, the other one where only that does."""
    for store, word in ((BY_BLOCKS[1], "distinct_in_rows"), (BY_BLOCKS[1].replace("(out, (t", "(out, (0"), "distinct")):
        with pytest.raises(CompileError) as found:
            prove(kernel(tmp_path, PUT.format(grid=BY_BLOCKS[0], store=store, flags="")))
        (fix,) = found.value.diagnostics[0].fixes
        assert fix.text == f"{word}=True"


def test_an_unwritten_element_breaks_a_promise_next_to_another_one(tmp_path: Path) -> None:
    """An element that no block writes breaks none in a row of its own, so the counterexample has rows of two or more."""
    text = """def k(given: In[i32, T], out: InOut[i32, T, N]):
    grid(T)
    requires(T >= 2)
    ensures(out, 0, N, distinct_in_rows=True)
    if load(given, bid(0)) > 0:
        for j in range(N):
            store(out, (bid(0), j), j)
"""
    with pytest.raises(CompileError) as found:
        prove(kernel(tmp_path, text))
    (example,) = (one.counterexample for one in found.value.diagnostics)
    assert example is not None
    assert (example.tensor, example.note.partition(" where ")[0]) == ("out", "is written by no block")
    assert example.dims["N"] >= 2


def test_a_range_of_fewer_numbers_than_a_row_contradicts_it(tmp_path: Path) -> None:
    text = PUT.format(grid=BY_BLOCKS[0], store=BY_BLOCKS[1], flags=", distinct_in_rows=True")
    prove(kernel(tmp_path, text))
    assert refused(kernel(tmp_path, text.replace("values(columns, 0, N", "values(columns, 0, 3"))) == {"E0307"}


def test_text_and_record_say_it(tmp_path: Path) -> None:
    function = in_a_row(tmp_path, KEPT["numbers in keys"][0])
    text = print_function(function)
    assert "ensures %out 0 .. 4 distinct_in_rows\n" in text
    assert print_function(parse_function(text)) == text
    (promise,) = prove(function).promises
    assert to_json(promise) == {"tensor": "out", "low": 0, "high": 4, "distinct_in_rows": True}
    assert str(promise) == "0 <= values of out < 4, distinct in each row"
    reader = kernel(tmp_path, PUT.format(grid="grid(T, 4)", store=BY_BLOCKS[1], flags=", distinct_in_rows=True"))
    assert "values %columns 0 .. N distinct_in_rows\n" in (text := print_function(reader))
    assert print_function(parse_function(text)) == text


def test_tile_ir_has_rows_of_two_axes_or_more(tmp_path: Path) -> None:
    function = in_a_row(tmp_path, KEPT["lanes"][0])
    tensor = function.parameter("out").value
    text = print_function(function).replace("tensor<i32, [T, 4]", "tensor<i32, [T]")
    assert tensor.tensor.rank == 2
    assert text.count("[T]") >= 1
    with pytest.raises(VerifyError, match="has fewer than two axes"):
        verify(parse_function(text))


def test_constants_of_the_promise_are_numbers_of_the_launch(tmp_path: Path) -> None:
    (promise,) = in_a_row(tmp_path, KEPT["lanes"][0]).promises
    assert (promise.high, promise.flags) == (const(4), ("distinct_in_rows",))
