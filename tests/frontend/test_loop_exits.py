"""`break`, `continue` and early `return`: a kernel computes what Python computes, and a conditional store is never counted."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from frontend_kernels import compile_body, refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soundness.verdict import examine_function
from tilec.interpreter import run

SIGNATURE = "ids: In[i32, N], out: Out[i32, N], a: i32, b: i32"
FRAME = """grid(N)
row = bid(0)
x, s, t = load(ids, row), i32(0), i32(1)
{loop}
store(out, row, s * 31 + t)
"""
CONDITIONS = [
    "x > a",
    "s % 3 == 0",
    "{i} == b",
    "s > 5 and t < 4",
    "not x < {i}",
    "(s + {i}) % 2 == 1",
    "t < b or x == {i}",
    "False",
]
STEPS = ["s = s + {i}", "t = t + 1", "s = s * 2 % 97", "t = s - {i}", "x = x + 1"]


@st.composite
def bodies(draw: st.DrawFn, depth: int = 2, variable: str = "i") -> list[str]:
    """Lines of a loop's body: steps, branches with and without exits, loops with exits of their own."""

    def one_of(texts: list[str]) -> str:
        return draw(st.sampled_from(texts)).format(i=variable)

    def branch() -> list[str]:
        end = draw(st.sampled_from(["", "", "break", "continue"]))
        lines = draw(bodies(depth - 1, variable))
        return [f"    {line}" for line in ([*lines, end] if end else lines)]

    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["step", "step", "exit", "branch", "loop", "unsafe"] if depth else ["step", "exit"]))
        if kind == "step":
            lines.append(one_of(STEPS))
        elif kind == "exit":
            lines += [f"if {one_of(CONDITIONS)}:", f"    {one_of(['break', 'continue'])}"]
        elif kind == "branch":
            lines += [f"if {one_of(CONDITIONS)}:", *branch()]
            lines += ["else:", *branch()] if draw(st.booleans()) else []
        elif kind == "unsafe":
            lines += ['with unsafe("a test"):', *branch()]
        else:
            inner = f"{variable}_{len(lines)}"  # after a loop the name of its variable has no value
            lines += [f"for {inner} in range({draw(st.integers(0, 3))}):"]
            lines += [f"    {line}" for line in draw(bodies(depth - 1, inner))]
    return lines


def in_python(loop: str, ids: list[int], a: int, b: int) -> list[int]:
    """What CPython computes, in 32 bits at the end: the steps keep numbers small."""
    code = f"def one(x, a, b):\n    s, t = 0, 1\n{textwrap.indent(loop, '    ')}\n    return s * 31 + t\n"
    names: dict[str, object] = {}
    exec(code.replace('with unsafe("a test"):', "if True:"), names)
    one = names["one"]
    assert callable(one)
    return [int(one(x, a, b)) for x in ids]  # type: ignore[call-overload]


@settings(max_examples=250, deadline=None)
@given(bodies(), st.integers(0, 4), st.integers(-3, 6), st.integers(-1, 4))
def test_kernels_leave_loops_as_python_does(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], trips: int, a: int, b: int
) -> None:
    loop = f"for i in range({trips}):\n" + textwrap.indent("\n".join(lines), "    ")
    folder = tmp_path_factory.mktemp("k")
    function = compile_body(folder, FRAME.format(loop=loop), SIGNATURE)
    ids = [-2, 0, 3, 7]
    out = np.zeros(4, np.int32)
    run(function, {"ids": np.array(ids, np.int32), "out": out}, {"a": a, "b": b})
    assert out.tolist() == in_python(loop, ids, a, b)


def result(tmp_path: Path, body: str, ids: list[int], a: int = 0, b: int = 0, signature: str = SIGNATURE) -> list[int]:
    out = np.zeros(len(ids), np.int32)
    run(compile_body(tmp_path, body, signature), {"ids": np.array(ids, np.int32), "out": out}, {"a": a, "b": b})
    return out.tolist()


def test_names_of_the_kernel_are_its_own(tmp_path: Path) -> None:
    body = "grid(N)\ngoing, here = i32(5), i32(6)\nfor i in range(9):\n    if i == a:\n        break\n    going = going + 1\n"
    assert result(tmp_path, body + "store(out, bid(0), going * 10 + here)", [0], a=3) == [86]


def test_a_tile_function_may_leave_its_loops(tmp_path: Path) -> None:
    before = """
        @tilec.function
        def first(ids, limit):
            found = i32(-1)
            for i in range(8):
                if load(ids, i % 2) + i > limit:
                    found = i
                    break
            return found
    """
    function = compile_body(tmp_path, "grid(N)\nstore(out, bid(0), first(ids, a))", SIGNATURE, before=before)
    out = np.zeros(2, np.int32)
    run(function, {"ids": np.array([1, 0], np.int32), "out": out}, {"a": 4, "b": 0})
    assert out.tolist() == [4, 4]


def test_an_early_return_ends_the_block(tmp_path: Path) -> None:
    signature = SIGNATURE.replace("out: Out", "out: InOut")
    body = "grid(N)\nx = load(ids, bid(0))\nif x < a:\n    return\nstore(out, bid(0), x)"
    assert result(tmp_path, body, [1, 5, 2, 9], a=3, signature=signature) == [0, 5, 0, 9]


REFUSED = {
    "break outside of a loop": ("break", "E0105"),
    "continue in a branch outside of a loop": ("if a > 0:\n    continue", "E0105"),
    "else of a loop with a break": ("for i in range(3):\n    break\nelse:\n    x = 1", "E0111"),
    "return in a loop": ("for i in range(3):\n    if i == a:\n        return", "E0115"),
    "while without a number": ("while a != 0:\n    a = a - 1", "E0111"),
    "else of a while": ("while a > 0:\n    a = a - 1\nelse:\n    b = 1", "E0111"),
    "a condition that is a tile": ("for i in range(3):\n    if arange(4) > i:\n        break", "E0210"),
    "a name that only the loop sets": (
        "for i in range(3):\n    y = i\n    if i == a:\n        break\nstore(out, 0, y)",
        "E0209",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(tmp_path: Path, name: str) -> None:
    body, code = REFUSED[name]
    assert [d.code for d in refusals(tmp_path, f"grid(N)\n{body}", SIGNATURE)] == [code]


ACCEPTED = {
    "store after the loop": """grid(N)
        s = i32(0)
        for i in range(N):
            if load(ids, i) > a:
                break
            s = i
        store(out, bid(0), s)""",
    "index that a break keeps small": """grid(N)
        s = i32(0)
        for i in range(N):
            if load(ids, i) > a:
                s = load(ids, i) - load(ids, i) + load(ids, minimum(i, N - 1))
                break
        store(out, bid(0), s)""",
    "store before the exit of the first iteration only, and after it": """grid(N)
        for i in range(1):
            store(out, bid(0), 1)
            if a > 0:
                break""",
}
PARTLY_WRITTEN = {
    "store in the loop, before the exit": """grid(1)
        for i in range(N):
            store(out, i, 1)
            if load(ids, i) > a:
                break""",
    "store in the loop, after the exit": """grid(1)
        for i in range(N):
            if load(ids, i) > a:
                break
            store(out, i, 1)""",
    "store after a continue": """grid(1)
        for i in range(N):
            if load(ids, i) > a:
                continue
            store(out, i, 1)""",
    "store after an early return": """grid(N)
        if a > 0:
            return
        store(out, bid(0), 1)""",
    "store that needs the loop's end": """grid(1)
        end = i32(0)
        for i in range(N):
            if load(ids, i) > a:
                break
            end = i + 1
        for i in range(end):
            store(out, i, 1)""",
}


def examined(tmp_path: Path, body: str) -> tuple[str, tuple[str, ...]]:
    verdict = examine_function(compile_body(tmp_path, textwrap.dedent(" " * 8 + body), SIGNATURE))
    assert not verdict.wrong_examples, verdict
    return verdict.kind, verdict.codes


@pytest.mark.parametrize("name", ["store after the loop", "index that a break keeps small"])
def test_accepted_and_nothing_goes_wrong(tmp_path: Path, name: str) -> None:
    assert examined(tmp_path, ACCEPTED[name])[0] == "accepted"


@pytest.mark.parametrize("name", PARTLY_WRITTEN)
def test_a_store_that_a_loop_may_not_reach_does_not_count(tmp_path: Path, name: str) -> None:
    kind, codes = examined(tmp_path, PARTLY_WRITTEN[name])
    assert kind == "refused_confirmed"
    assert {"E0403", "E0306"} & set(codes)
