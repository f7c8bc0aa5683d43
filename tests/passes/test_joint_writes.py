"""Two writes that depend on loaded elements: no launch is shown as one that leaves an element unwritten where one of the two
always writes it, and one is shown where contents keep both from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import Verdict, examine_function
from tilec.frontend import load_kernel

HEAD = '''"""Writes that loaded elements choose."""
from tilec import Dim, In, Out, arange, bid, cummin, f32, grid, i32, kernel, load, scatter, store, where, zeros


class N(Dim):
    """rows"""


@kernel
'''
LANES = """def k(x: In[i32, 4], out: Out[f32, 4]):
    grid(1)
    t, p = load(x, 0, shape=4), arange(4)
    scatter(out, where(t {first}, p, -1), zeros(4, f32), mask=True)
    scatter(out, where(t {second}, p, -1), zeros(4, f32), mask=True)
"""
BLOCKS = """def k(x: In[i32, N], out: Out[f32, N]):
    grid(N)
    v = load(x, bid(0))
    if v {first}:
        store(out, bid(0), 1.0)
    if v {second}:
        store(out, bid(0), 2.0)
"""


def verdict_of(tmp_path: Path, text: str, first: str, second: str) -> Verdict:
    path = tmp_path / "k.py"
    path.write_text(HEAD + text.format(first=first, second=second), encoding="utf-8")
    return examine_function(load_kernel(path, {}), 1)


@pytest.mark.parametrize(("first", "second"), [("== 0", "!= 0"), ("< 3", ">= 3"), ("% 2 == 0", "% 2 == 1")])
def test_complements_are_not_shown_to_miss_an_element(first: str, second: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, LANES, first, second)
    assert verdict.kind in ("accepted", "refused_harmless") and not verdict.wrong_examples, verdict
    assert verdict_of(tmp_path, BLOCKS, first, second).kind == "accepted"


@pytest.mark.parametrize(("first", "second"), [("< 0", "> 0"), ("< 3", ">= 4")])
def test_contents_that_keep_both_away_are_shown(first: str, second: str, tmp_path: Path) -> None:
    lanes, blocks = (verdict_of(tmp_path, text, first, second) for text in (LANES, BLOCKS))
    assert lanes.codes and lanes.kind.startswith("refused") and not lanes.wrong_examples, lanes
    assert (blocks.kind, blocks.codes, blocks.wrong_examples) == ("refused_confirmed", ("E0403",), ()), blocks


SUMS = """def k(x: In[f32, 4], out: Out[f32, 4]):
    grid(1)
    p = arange(4)
    c = cummin(where(load(x, 0, shape=4) > 1, 0, 1), 0)
    chosen = c >= p
    scatter(out, where(chosen, p, 4), zeros(4, f32), mask=True)
    scatter(out, where({second}, p, 4), zeros(4, f32), mask=True)
"""


def test_one_value_has_one_number_in_both_writes(tmp_path: Path) -> None:
    """No counterexample takes what is computed from floats for 0 at one write of a lane and for 1 at the other."""
    verdict = verdict_of(tmp_path, SUMS.replace("{second}", "~chosen"), "", "")
    assert verdict.kind in ("accepted", "refused_harmless") and not verdict.wrong_examples, verdict
    assert not any(one.code == "E0404" for one in verdict.diagnostics), verdict.diagnostics
    twice = verdict_of(tmp_path, SUMS.replace("{second}", "chosen"), "", "")
    assert twice.kind == "refused_confirmed", twice
