"""Claims at the start of a loop: where they stand, what they may be, and names of a kernel that look like them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontend_kernels import compile_body, compile_text, ops_of, refusals

from tilec.interpreter import InterpreterError, run
from tilec.ir.core import Function
from tilec.ir.ops import Decreases, For, Invariant
from tilec.passes.prover import prove

SIGNATURE = "ids: In[i32, N], out: Out[i32, N], a: i32, b: i32"
START = "grid(N)\ns = i32(0)\n"
END = "\nstore(out, bid(0), s)"


def built(folder: Path, loop: str, before: str = "") -> Function:
    return compile_body(folder, START + loop + END, SIGNATURE, before=before)


def result(function: Function, a: int = 0, b: int = 0) -> list[int]:
    out = np.zeros(2, np.int32)
    run(function, {"ids": np.array([3, 5], np.int32), "out": out}, {"a": a, "b": b})
    return out.tolist()


REFUSED = {
    "an invariant after a statement": ("for i in range(3):\n    s = s + 1\n    tilec.invariant(s >= 0)", "E0111",
                                       "`invariant` stands at the start of the body of a loop"),
    "an invariant in a branch": ("for i in range(3):\n    if a > 0:\n        tilec.invariant(s >= 0)", "E0111",
                                 "`invariant` stands at the start of the body of a loop"),
    "an invariant of no loop": ("tilec.invariant(s >= 0)", "E0111", "`invariant` stands at the start of the body of a loop"),
    "a number of no loop": ("tilec.decreases(a)", "E0111", "`decreases` stands at the start of the body of `while`"),
    "a number of a for loop": ("for i in range(3):\n    tilec.decreases(3 - i)\n    s = s + 1", "E0111",
                               "a `for` loop ends by itself"),
    "an invariant of nothing": ("for i in range(3):\n    tilec.invariant()\n    s = s + 1", "E0113",
                                "`invariant` takes conditions by position"),
    "an invariant that is no condition": ("for i in range(3):\n    tilec.invariant(s)\n    s = s + 1", "E0210",
                                          "a condition must be a bool, found a scalar of i32"),
    "an invariant of a tile": ("for i in range(3):\n    tilec.invariant(arange(4) >= 0)\n    s = s + 1", "E0210",
                               "a condition must be a scalar, found a tile of bool of shape (4,)"),
    "an invariant that reads": ("for i in range(3):\n    tilec.invariant(load(ids, i) > 0)\n    s = s + 1", "E0111",
                                "an invariant is arithmetic of scalars, and reads no tensor"),
    "a number that reads": ("while s < 3:\n    tilec.decreases(3 - load(ids, s))\n    s = s + 1", "E0111",
                            "the number of a `while` is arithmetic of scalars, and reads no tensor"),
    "a number that is a float": ("while s < 3:\n    tilec.decreases(f32(3 - s))\n    s = s + 1", "E0111",
                                 "the number of a `while` is an i32 scalar, found a scalar of f32"),
    "a comparison of wide numbers": ("t = i64(0)\nwhile t < i64(N):\n    t = t + 1", "E0111",
                                     "a `while` needs a number of the passes that are left"),
    "two numbers": ("while s < 3:\n    tilec.decreases(3 - s)\n    tilec.decreases(4 - s)\n    s = s + 1", "E0113",
                    "`decreases` takes one number"),
    "a number and another": ("while s < 3:\n    tilec.decreases(3 - s, 1)\n    s = s + 1", "E0113",
                             "`decreases` takes one number"),
    "a condition that is a number": ("while s:\n    tilec.decreases(3 - s)\n    s = s + 1", "E0210",
                                     "a condition must be a bool, found a scalar of i32"),
    "a carried number of another type": ("while s < 3:\n    s = s + 0.5", "E0204", "the float 0.5 cannot be used as i32"),
    "a name that only the loop sets": ("while s < 3:\n    t = s\n    s = s + 1\ns = t", "E0209", "`t` may be unset after this"),
    "a return": ("while s < 3:\n    return", "E0115", "`return` inside a loop or `with`"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    loop, code, message = REFUSED[name]
    (only,) = refusals(tmp_path, START + loop + END, SIGNATURE)
    assert only.code == code and only.message == message


def test_a_function_of_the_kernel_with_the_name_is_no_claim(tmp_path: Path) -> None:
    """After the `break` it is not called any more."""
    before = """
        @tilec.function
        def claim(out, n):
            store(out, n, 7)
    """
    text = "for i in range(N):\n    claim(out, i)\n    if i == a:\n        break\ns = i32(7)"
    compile_body(tmp_path, f"grid(1)\n{text}", SIGNATURE.replace("out: Out", "out: InOut"), before=before)
    source = (tmp_path / "k.py").read_text(encoding="utf-8")
    for word in ("invariant", "decreases"):
        folder = tmp_path / word
        folder.mkdir()
        function = compile_text(folder, source.replace("claim", word))
        assert not ops_of(function, Invariant) and not ops_of(function, Decreases)
        out = np.zeros(5, np.int32)
        run(function, {"ids": np.zeros(5, np.int32), "out": out}, {"a": 2, "b": 0})
        assert out.tolist() == [7, 7, 7, 0, 0]


def test_words_under_another_name_are_claims(tmp_path: Path) -> None:
    before = "from tilec import decreases as falls, invariant as always"
    function = built(tmp_path, "while s < 4:\n    always(0 <= s)\n    falls(4 - s)\n    s = s + 1", before)
    prove(function)
    assert len(ops_of(function, Invariant)) == 4 and len(ops_of(function, Decreases)) == 2
    assert result(function) == [4, 4]


def test_a_parameter_of_that_name_is_no_claim(tmp_path: Path) -> None:
    body = "grid(N)\nfor i in range(3):\n    invariant(i)\nstore(out, bid(0), a)"
    (only,) = refusals(tmp_path, body, SIGNATURE + ", invariant: i32", before="from tilec import invariant")
    assert (only.code, only.message) == ("E0106", "`invariant` cannot be called")


def test_names_that_a_while_needs_are_its_own(tmp_path: Path) -> None:
    """`range`, `max` and names of flags mean what the kernel says."""
    before = """
        @tilec.function
        def range(n):
            return n * 100
    """
    names = "going, here, passes, limit = i32(1), i32(2), i32(3), range(2) // 50\n"
    loop = f"{names}while s < limit:\n    tilec.invariant(0 <= s)\n    s = s + going"
    function = built(tmp_path, loop + "\ns = s * 100 + here * 10 + passes", before)
    assert result(function) == [423, 423]


def test_inlined_twice_and_nested(tmp_path: Path) -> None:
    before = """
        @tilec.function
        def up_to(n):
            i, total = i32(0), i32(0)
            while i < n:
                tilec.invariant(0 <= i, i <= 9, 0 <= total, total <= 100)
                j = i32(0)
                while j < i:
                    tilec.invariant(0 <= j, j <= i)
                    j = j + 1
                total = minimum(total + j, 100)
                i = i + 1
            return total
    """
    function = built(tmp_path, "s = up_to(minimum(a, 9)) * 1000 + up_to(minimum(b, 9))", before)
    prove(function)
    numbers = [op.number for op in ops_of(function, Decreases) if isinstance(op, Decreases)]
    assert len(numbers) == 8 and len(set(numbers)) == 4
    assert result(function, 4, 5) == [6010, 6010]


def test_a_while_that_never_runs(tmp_path: Path) -> None:
    for condition in ("False", "s > 5", "a > 100"):
        function = built(tmp_path, f"while {condition}:\n    tilec.decreases(1 - s)\n    s = s + 1")
        assert result(function, a=1) == [0, 0]


def test_a_negative_number_before_the_loop_is_one_pass(tmp_path: Path) -> None:
    """Its condition is evaluated, and must be false."""
    function = built(tmp_path, "while a > 0:\n    tilec.decreases(a - 10)\n    a = a - 1")
    (loop,) = ops_of(function, For)
    assert isinstance(loop, For) and loop.variable == "pass"
    assert result(function, a=-5) == [0, 0]
    with pytest.raises(InterpreterError, match="a pass of a `while` starts with the number -5"):
        result(function, a=5)


def test_the_interpreter_meets_false_claims(tmp_path: Path) -> None:
    function = built(tmp_path, "for i in range(4):\n    tilec.invariant(s < 3)\n    s = s + 1")
    with pytest.raises(InterpreterError, match="the invariant is false"):
        result(function)
    function = built(tmp_path, "while s < 4:\n    if s < 2:\n        s = s + 1")
    with pytest.raises(InterpreterError, match="does not make its number smaller: 2, then 2"):
        result(function)
