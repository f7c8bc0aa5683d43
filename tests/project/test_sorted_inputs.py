"""`values(..., sorted=True, ends=True)` survives every representation of a kernel, and random inputs satisfy it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bundle import samples
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import TensorSpec, ValueCheck, to_json
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import InterpreterError, run
from tilec.ir.expr import const
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.project.trial.launches import Stored, random_values

KERNEL = '''
import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store, values

class N(Dim): """offsets"""
class M(Dim): """rows of a table"""

@tilec.kernel
def first(cu: In[i32, N], table: In[i32, M, 2], out: Out[i32, N]):
    grid(N)
    values(cu, 2, 8, sorted=True, ends=True)
    store(out, bid(0), load(cu, bid(0)))
'''


def load(folder: Path, old: str = "", new: str = ""):
    path = folder / "first.py"
    path.write_text(KERNEL.replace(old, new) if old else KERNEL, encoding="utf-8")
    return load_kernel(path, {})


def test_the_declaration_is_printed_and_read(tmp_path: Path) -> None:
    text = print_function(load(tmp_path))
    assert "values %cu 2 .. 8 sorted ends" in text
    assert print_function(parse_function(text)) == text


def test_a_manifest_keeps_it_and_leaves_it_out_where_it_is_false() -> None:
    data = samples.manifest("first", b"code", {})
    check = data["value_checks"][0]
    read = manifest_from_json(data).value_checks[0]
    assert (read.sorted, read.ends) == (False, False)
    assert to_json(read) == check
    check |= {"sorted": True, "ends": True}
    read = manifest_from_json(data).value_checks[0]
    assert (read.sorted, read.ends) == (True, True)
    assert to_json(read) == check
    check["sorted"] = 1
    with pytest.raises(ValueError, match="sorted: not a bool"):
        manifest_from_json(data)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("sorted=True, ends=True", "ends=True", "E0113"),
        ("sorted=True", "sorted=1", "E0113"),
        ("sorted=True", "rising=True", "E0113"),
        ("values(cu", "values(table", "E0217"),
    ],
)
def test_unsupported_forms_are_refused(tmp_path: Path, old: str, new: str, code: str) -> None:
    with pytest.raises(CompileError) as caught:
        load(tmp_path, old, new)
    assert [one.code for one in caught.value.diagnostics] == [code]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([2, 5, 4, 7], "is not sorted"),
        ([2, 3, 4, 5], "goes from 2 to 5"),
        ([3, 3, 4, 7], "goes from 3 to 7"),
        ([2, 2, 7, 7], ""),
    ],
)
def test_the_interpreter_checks_it(tmp_path: Path, numbers: list[int], message: str) -> None:
    arrays = {
        "cu": np.array(numbers, np.int32), "table": np.zeros((1, 2), np.int32), "out": np.zeros(len(numbers), np.int32)
    }  # fmt: skip
    if message:
        with pytest.raises(InterpreterError, match=message):
            run(load(tmp_path), arrays, {})
        return
    run(load(tmp_path), arrays, {})
    assert arrays["out"].tolist() == numbers


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_random_inputs_keep_to_it(count: int, ends: bool, distinct: bool) -> None:
    spec = TensorSpec("cu", "in", "i32", (const(count),), None, 4, False)
    check = ValueCheck("cu", const(2), const(3 if count == 1 else 60), distinct, True, ends)
    for seed in range(20):
        found = random_values(np.random.default_rng(seed), spec, count, Stored.of(check, spec, {}))
        assert found.size == count and found.min() >= 2 and found.max() < check.high.value
        assert (np.diff(found) >= distinct).all()
        assert not ends or (found[0], found[-1]) == (2, check.high.value - 1)


@pytest.mark.parametrize("dims", [(1, 1), (3, 8), (6, 7), (2, 3, 4), (5, 2)])
@pytest.mark.parametrize("step", [None, 1, 3])
def test_random_rows_hold_different_numbers(dims: tuple[int, ...], step: int | None) -> None:
    """With a range as large as a row, one number more, and a large one; elements of a row may be apart in memory."""
    strides = None if step is None else tuple(step * int(np.prod(dims[axis + 1 :])) for axis in range(len(dims)))
    spec = TensorSpec(
        "x", "in", "i32", tuple(map(const, dims)), None if strides is None else tuple(map(const, strides)), 4, False
    )
    count = int(np.prod(dims)) if strides is None else 1 + sum((d - 1) * s for d, s in zip(dims, strides, strict=True))
    for room in (dims[-1], dims[-1] + 1, 1 << 20):
        check = ValueCheck("x", const(5), const(5 + room), False, distinct_in_rows=True)
        for seed in range(5):
            flat = random_values(np.random.default_rng(seed), spec, count, Stored.of(check, spec, {}))
            offsets = sum(np.arange(d).reshape(-1, *[1] * (len(dims) - axis - 1)) * s
                          for axis, (d, s) in enumerate(zip(dims, strides or contiguous(dims), strict=True)))  # fmt: skip
            rows = np.sort(flat[offsets], axis=-1)
            assert flat.size == count
            assert rows.min() >= 5 and rows.max() < 5 + room
            assert (np.diff(rows, axis=-1) > 0).all()


def contiguous(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[axis + 1 :])) for axis in range(len(dims)))
