"""Facts about values by position are true: every expression of small kernels is evaluated at every block and launch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tilec.diagnostics.diagnostic import Span
from tilec.frontend import load_kernel
from tilec.passes.analysis.facts import Fact, Facts, facts
from tilec.passes.prover import prove

KERNEL = """import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, i32, load, maximum, minimum, requires, store, values

class N(Dim):
    pass

@tilec.function
def twice(v):
    return v + v

@tilec.kernel
def k(x: In[i32, N], out: Out[i32, N], shift: i32, *, B: Const):
    requires(N % 8 == 0)
    requires(N <= 48)
    requires(shift >= 3)
    requires(shift <= 5)
    values(x, 0, 1000000000)
    grid(cdiv(N, B))
    i = bid(0)
    first = i * B
    left = N - first
    even = twice(i) + shift * 2
    part = (first + shift) % 8
    near = minimum(left, B) // 2
    wide = maximum(even, part) * 8 + 4
    v = load(x, i, shape=B, pad=0)
    store(out, i, v * 8, mask=True)
"""


def known(tmp_path: Path, size: int, *, proven: bool) -> Facts:
    path = tmp_path / "k.py"
    path.write_text(KERNEL)
    uses: list[tuple[Span, Any]] = []
    function = load_kernel(path, {"B": size}, uses=uses)
    prove(function)
    return facts(function, uses, proven=proven)


def text_of(fact: Fact) -> str:
    assert fact.span is not None
    return KERNEL.splitlines()[fact.span.line - 1][fact.span.column : fact.span.end_column]


@pytest.mark.parametrize(("size", "proven"), [(8, False), (8, True), (16, False), (16, True)])
def test_every_value_is_within_its_fact(tmp_path: Path, size: int, proven: bool) -> None:
    found = known(tmp_path, size, proven=proven)
    computed = 0
    for n, shift in itertools.product(range(8, 49, 8), (3, 4, 5)):
        for block in range(-(-n // size)):
            names: dict[str, Any] = {
                "N": n, "B": size, "shift": shift, "bid": lambda axis, block=block: block, "twice": lambda v: v + v,
                "minimum": min, "maximum": max, "cdiv": lambda a, b: -(-a // b),
            }  # fmt: skip
            for line in KERNEL.splitlines():
                if line.startswith("    ") and " = " in line and "load" not in line:
                    exec(line.strip(), names)
            for fact in found.by_location:
                text = text_of(fact)
                if fact.type != "i32" or text in ("v", "v + v"):
                    continue
                value = eval(text, names)
                assert fact.low is not None and fact.high is not None
                assert fact.low <= value <= fact.high, text
                assert value == fact.rest if fact.modulus == 0 else value % fact.modulus == fact.rest % fact.modulus, text
                computed += 1
    assert computed > 300


def test_reported_facts_are_sharp(tmp_path: Path) -> None:
    found = known(tmp_path, 8, proven=True)
    by_text = {text_of(fact): fact for fact in found.by_location}
    assert (by_text["first"].low, by_text["first"].high, by_text["first"].modulus) == (0, 40, 8)
    assert (by_text["part"].low, by_text["part"].high) == (0, 7)
    assert (by_text["near"].low, by_text["near"].high) == (-20, 4)
    assert (by_text["wide"].modulus, by_text["wide"].rest) == (8, 4)
    assert by_text["v"].type == "i32[8]" or by_text["v"].type == "i32"
    assert (found.names["N"].low, found.names["N"].high, found.names["N"].modulus) == (1, 48, 8)
    assert (found.names["shift"].low, found.names["shift"].high) == (3, 5)
    assert found.names["B"].type == "constant 8"
    assert found.names["x"].type == "tensor i32[N]"
    assert [str(span).rpartition("k.py:")[2] for span in found.accesses] == ["26:9", "27:5"]


def test_data_that_may_wrap_is_not_assumed_to_stay_within_its_type(tmp_path: Path) -> None:
    (found,) = [fact for fact in known(tmp_path, 8, proven=True).by_location if text_of(fact) == "v * 8"]
    assert found.whole and (found.low, found.high) == (-(2**31), 2**31 - 1)
    assert found.modulus == 8  # what survives wrapping
