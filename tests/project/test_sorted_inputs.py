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
