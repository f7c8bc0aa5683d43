"""Where the budget of the proofs of a kernel goes: second attempts have a part of it, and what was found until then counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.passes.texts import function_of
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.prover import prove, second_attempts
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.second_attempts import SecondAttempts
from tilec.passes.prover.terms import OutOfWork
from tilec.passes.prover.work import Work

MODULE = sys.modules["tilec.passes.prover.prove"]
"""The package exports a function of the same name as this module."""
FLAT = '''from typing import Literal

from tilec import Dim, In, Out, bid, f32, grid, kernel, load, store


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@kernel
def flat(x: In[f32, M, N], out: Out[f32, Literal["M * N"]]):
    grid(M, N)
    store(out, bid(0) * M + bid(1), load(x, (bid(0), bid(1))))
'''


def test_a_part_of_the_budget_ends_undecided() -> None:
    work = Work(limit=100)
    with work.at_most(10):
        work.charge(10)
        with pytest.raises(Undecided):
            work.charge(1)
    work.charge(80)  # outside of the block only the whole budget counts
    with work.at_most(50), pytest.raises(OutOfWork):
        work.charge(10)


def test_second_attempts_end_within_their_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this kernel they take 36,000 steps, in several attempts at one obligation."""
    made: list[SecondAttempts] = []
    proof = SecondAttempts.proof
    monkeypatch.setattr(SecondAttempts, "proof", lambda self, *given: made.append(self) or proof(self, *given))  # pyright: ignore
    monkeypatch.setattr(second_attempts, "AGAIN_STEPS", 6_000)
    with pytest.raises(CompileError) as refused:
        prove(function_of(tmp_path, FLAT))
    assert made and 6_000 <= made[0].spent < 12_000
    assert "E0302" in {found.code for found in refused.value.diagnostics}


def test_a_launch_that_was_found_is_shown_when_the_budget_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = function_of(tmp_path, FLAT)
    monkeypatch.setattr(MODULE, "Work", lambda: Work(limit=200_000))
    with pytest.raises(CompileError) as refused:
        prove(function)
    *found, end = sorted(refused.value.diagnostics, key=lambda one: one.code)
    assert end.code == "E0510" and {one.code for one in found} == {"E0304"}
    assert all(one.counterexample is not None for one in found)
