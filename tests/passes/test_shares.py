"""Shares of a range, `range(s * each, minimum((s + 1) * each, length))`, right and wrong: no launch refutes what the prover
accepts, right ones are accepted, and wrong ones are refused with a launch that goes wrong."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests import campaign
from tests.passes.texts import verdict_of

HEAD = '''"""Shares."""
from tilec import (Dim, In, InOut, Out, arange, bid, cdiv, f32, gather, grid, i32, kernel, load, maximum, minimum, num_blocks,
                   requires, scatter, store, values, where)
class M(Dim): """rows"""
class N(Dim): """elements of a row"""
@kernel
'''
BLOCKS = """def shares(x: In[f32, N], out: Out[f32, N], S: i32):
    grid({grid})
    requires(1 <= S, S <= 65536, N <= 2**30)
    each, s = {each}, bid(0)
    for j in range({first}, {last}):
        store(out, {at}, load(x, {at}))
"""
LOOP = """def shares(x: In[f32, N], out: Out[f32, N], S: i32):
    grid(1)
    requires(1 <= S, S <= 65536, N <= 2**30)
    each = {each}
    for s in range({grid}):
        for j in range({first}, {last}):
            store(out, {at}, load(x, {at}))
"""
COLUMNS = """def shares(x: In[f32, M, N], out: Out[f32, M, N], S: i32):
    grid(M, {grid})
    requires(1 <= S, S <= 65535, N <= 2**30)
    each, s = {each}, bid(1)
    for j in range({first}, {last}):
        store(out, (bid(0), {at}), load(x, (bid(0), {at})))
"""
LOADED = """def shares(lengths: In[i32, M], x: In[f32, M, N], out: InOut[f32, M, N], S: i32):
    grid(M, {grid})
    requires(1 <= S, S <= 65535, N <= 2**30)
    values(lengths, 0, N + 1)
    n = load(lengths, bid(0))
    each, s = {each}, bid(1)
    for j in range({first}, {last}):
        store(out, (bid(0), {at}), load(x, (bid(0), {at})))
"""
LANES = """def shares(x: In[f32, N], out: Out[f32, N], S: i32):
    grid({grid})
    requires(1 <= S, S <= 65536, N <= 2**30)
    each, s = {each}, bid(0)
    end = {last}
    for first in range({first}, end, 4):
        lanes = first + arange(4)
        scatter(out, where(lanes < end, {at}, N), gather(x, lanes, pad=0), mask=True)
"""
TILES = """def shares(x: In[f32, N], out: Out[f32, N], S: i32):
    grid({grid})
    requires(1 <= S, S <= 65536, N <= 2**30)
    n, s = cdiv(N, 4), bid(0)
    each = {each}
    for j in range({first}, {last}):
        store(out, {at}, load(x, {at}, shape=4, pad=0), mask=True)
"""
TEXTS = {"blocks": BLOCKS, "loop": LOOP, "columns": COLUMNS, "loaded": LOADED, "lanes": LANES, "tiles": TILES}
RIGHT = {"grid": "S", "each": "cdiv({n}, S)", "first": "s * each", "last": "minimum((s + 1) * each, {n})", "at": "{j}"}
SPELT = [
    {},
    {"each": "({n} + S - 1) // S"},
    {"each": "({n} - 1) // S + 1"},
    {"last": "minimum(s * each + each, {n})"},
    {"grid": "8", "each": "cdiv({n}, 8)"},
    {"grid": "8", "each": "({n} + 7) // 8"},
]
WRONG = {
    "overlap by one": {"last": "minimum((s + 1) * each + 1, {n})"},
    "a gap": {"last": "minimum((s + 1) * each - 1, {n})"},
    "rounded down": {"each": "{n} // S"},
    "no minimum": {"last": "(s + 1) * each"},
    "a block too few": {"each": "cdiv({n}, S + 1)"},
    "begins one early": {"first": "maximum(s * each - 1, 0)"},
    "begins one late": {"first": "s * each + 1"},
}
CHOICES = {
    "grid": ["S", "S", "S", "S + 1", "8", "maximum(S - 1, 1)"],
    "each": ["cdiv({n}, S)", "cdiv({n}, S)", "({n} + S - 1) // S", "{n} // S", "{n} // S + 1", "cdiv({n}, 8)",
             "cdiv({n}, S + 1)"],
    "first": ["s * each", "s * each", "s * each", "s * each + 1", "(s + 1) * each", "minimum(s * each, {n})"],
    "last": ["minimum((s + 1) * each, {n})", "minimum((s + 1) * each, {n})", "minimum(s * each + each, {n})", "(s + 1) * each",
             "minimum((s + 2) * each, {n})", "minimum((s + 1) * each, {n} - 1)", "minimum((s + 1) * each, {n} + 1)"],
    "at": ["{j}", "{j}", "{j}", "{j}", "{n} - 1 - {j}", "minimum({j}, {n} - 1)", "{j} + 1"],
}  # fmt: skip


def text_of(kind: str, changes: dict[str, str]) -> str:
    names = {"n": "n" if kind in ("loaded", "tiles") else "N", "j": "lanes" if kind == "lanes" else "j"}
    parts = {key: value.format(**names) for key, value in {**RIGHT, **changes}.items()}
    return TEXTS[kind].format(**parts)


@pytest.mark.parametrize(("kind", "spelt"), campaign.in_turn(TEXTS, range(len(SPELT))))
def test_right_shares_are_accepted(tmp_path: Path, kind: str, spelt: int) -> None:
    verdict = verdict_of(tmp_path, HEAD + text_of(kind, SPELT[spelt]))
    assert verdict.kind == "accepted", verdict.diagnostics or verdict.fault
    assert verdict.launches


@pytest.mark.parametrize(("kind", "wrong"), campaign.in_turn(["blocks", "loop", "columns", "lanes", "tiles"], WRONG))
def test_wrong_shares_are_refused_with_a_launch_that_goes_wrong(tmp_path: Path, kind: str, wrong: str) -> None:
    verdict = verdict_of(tmp_path, HEAD + text_of(kind, WRONG[wrong]))
    if kind in ("lanes", "tiles") and wrong == "no minimum":  # what lies past the end is masked
        assert verdict.kind != "false_accept"
        return
    assert verdict.kind == "refused_confirmed", verdict
    assert any(diagnostic.counterexample is not None for diagnostic in verdict.diagnostics), verdict.diagnostics
    assert not verdict.wrong_examples


def test_shares_of_loaded_lengths_that_overlap_are_refused_with_a_launch(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + text_of("loaded", WRONG["overlap by one"]))
    assert verdict.kind == "refused_confirmed", verdict
    assert "E0401" in verdict.codes
    assert not verdict.wrong_examples


def test_shares_of_a_given_size_are_accepted(tmp_path: Path) -> None:
    """The number of blocks is computed on the host from a scalar that `requires` makes positive."""
    given = """def shares(x: In[f32, N], out: Out[f32, N], each: i32):
    grid(cdiv(N, each))
    requires(1 <= each, each <= 65536, N <= 2**30)
    for j in range(bid(0) * each, minimum((bid(0) + 1) * each, N)):
        store(out, j, load(x, j))
"""
    assert verdict_of(tmp_path, HEAD + given).kind == "accepted"
    verdict = verdict_of(tmp_path, HEAD + given.replace("cdiv(N, each)", "N // each"))
    assert verdict.kind == "refused_confirmed", verdict
    assert "E0403" in verdict.codes


@pytest.mark.parametrize("batch", campaign.first(1, range(20)))
def test_no_launch_refutes_what_is_accepted(tmp_path: Path, batch: int) -> None:
    kinds = Counter[str]()
    for seed in range(batch * 8, batch * 8 + 8):
        r = random.Random(f"shares {seed}")
        changes = {name: r.choice(CHOICES[name]) for name in r.sample(sorted(CHOICES), r.choice([0, 1, 1, 2, 3]))}
        text = text_of(r.choice(sorted(TEXTS)), changes)
        verdict = verdict_of(tmp_path, HEAD + text, seed)
        kinds[verdict.kind] += 1
        assert verdict.kind != "false_accept", (text, verdict.fault, verdict.sizes)
    assert kinds["accepted"] and kinds["refused_confirmed"], kinds
