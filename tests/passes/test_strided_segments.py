"""Loops between loaded bounds with the stride of the grid, right and wrong: no launch refutes what the prover accepts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests import campaign
from tests.soundness.verdict import examine_function
from tilec.frontend import load_kernel

HEAD = '''"""Rows of segments."""
from typing import Literal
from tilec import (Dim, In, InOut, Out, Scratch, arange, bid, cdiv, f32, gather, grid, i32, kernel, load, maximum, minimum,
                   num_blocks, requires, scatter, store, values, where)
class B(Dim): """segments"""
class T(Dim): """rows"""
@kernel
'''
KERNEL = """def rows(cu: In[i32, Literal["B + 1"]], x: In[f32, T], out: {access}[f32, T], blocks: i32):
    requires(1 <= blocks, blocks <= 8)
    grid({grid})
    values(cu, 0, T + 1{words})
    begin, end = load(cu, {first}), load(cu, {last})
    for j in range({start}, {stop}, {step}):
        {store}
"""
WORDS = ["", ", sorted=True", ", sorted=True, ends=True", ", sorted=True, ends=True", ", sorted=True, ends=True"]
ELEMENT = "store(out, {j}, load(x, {j}))"
CHOICES = {
    "step": ["num_blocks(1)", "num_blocks(1)", "blocks", "blocks", "num_blocks(0)", "2", "blocks * 2"],
    "first": ["bid(0)", "bid(0)", "bid(0)", "bid(1)", "minimum(bid(0) + bid(1), B)"],
    "last": ["bid(0) + 1", "bid(0) + 1", "bid(0) + 1", "bid(0)", "minimum(bid(0) + 2, B)"],
    "grid": ["B, blocks", "B, blocks", "B, blocks", "B + 1, blocks", "blocks, B"],
    "words": WORDS,
    "access": ["Out", "Out", "InOut"],
}
ROWS = {
    "start": [
        "begin + bid(1)",
        "begin + bid(1)",
        "begin",
        "begin + 2 * bid(1)",
        "bid(1) + begin + 1",
        "maximum(begin, bid(1))",
    ],
    "stop": ["end", "end", "end", "end - 1", "T"],
    "store": [ELEMENT.format(j="j"), ELEMENT.format(j="j"), ELEMENT.format(j="minimum(j + 1, T - 1)")],
}
TILES = {
    "start": ["bid(1)", "bid(1)", "bid(1) + 1", "0"],
    "stop": ["cdiv(end - begin, 2)", "cdiv(end - begin, 2)", "(end - begin) // 2", "end - begin"],
    "store": [
        "scatter(out, where({r} < end, {r}, T), gather(x, {r}, pad=0), mask=True)".format(r="(begin + j * 2 + arange(2))"),
        "scatter(out, where({r} < end, {r}, T), gather(x, {r}, pad=0), mask=True)".format(r="(begin + j * 2 + arange(2))"),
        "scatter(out, begin + j * 2 + arange(2), gather(x, begin + j * 2 + arange(2), pad=0), mask=True)",
    ],
}
RIGHT = {
    "step": "num_blocks(1)",
    "first": "bid(0)",
    "last": "bid(0) + 1",
    "grid": "B, blocks",
    "words": WORDS[-1],
    "access": "Out",
}


def drawn(seed: int) -> str:
    """A kernel that differs from a right one in two places at most."""
    r = random.Random(f"segments {seed}")
    form = r.choice([ROWS, TILES])
    parts = RIGHT | {name: texts[0] for name, texts in form.items()}
    for name in r.sample(sorted(parts), r.choice([0, 1, 1, 2])):
        parts[name] = r.choice((CHOICES | form)[name])
    return HEAD + KERNEL.format(**parts)


@pytest.mark.parametrize("batch", campaign.first(1, range(8)))
def test_no_launch_refutes_what_is_accepted(batch: int, tmp_path: Path) -> None:
    path, kinds = tmp_path / "rows.py", Counter[str]()
    for seed in range(batch * 12, batch * 12 + 12):
        text = drawn(seed)
        path.write_text(text, encoding="utf-8")
        verdict = examine_function(load_kernel(path, {}))
        kinds[verdict.kind] += 1
        assert verdict.kind != "false_accept", (text, verdict)
        # A launch that wraps has billions of rows: the enumerator cannot run it.
        assert set(verdict.wrong_examples) <= {"E0304"}, (text, verdict)
    assert kinds["accepted"] and kinds["refused_confirmed"], kinds
