"""Several ranks on the interpreter: the kernels compute what collectives are, in any order of blocks, and meet first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import rank_launches
from tilec.frontend import load_kernel
from tilec.interpreter import InterpreterError, run, run_ranks
from tilec.ir.core import Function

EARLY = '''"""Reads before it meets."""
import tilec
from tilec import Const, Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def early(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 1], rank: i32):
    grid(1)
    a = load(x[1], 0)
    meet(signals, rank)
    store(out, 0, a)
'''


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kernel", rank_launches.COLLECTIVES)
def test_a_kernel_computes_its_collective_in_every_rank(kernel: str, ranks: int) -> None:
    function = rank_launches.load(kernel, ranks, dtype="f32" if kernel == rank_launches.GATHER else "bf16")
    given = rank_launches.arguments(function, ranks)
    truth = [rank_launches.expected(function, given, rank) for rank in range(ranks)]
    scalars = [{"rank": rank} for rank in range(ranks)]
    run_ranks(function, given.arrays, scalars, block_order=lambda rank, every: every[::-1] if rank else every)
    for rank, arrays in enumerate(truth):
        for name, array in arrays.items():
            found = given.arrays[rank][name]
            if name == "squares":  # which NumPy adds in another order
                assert np.allclose(found, array, rtol=1e-6)
            else:
                assert found.tobytes() == array.tobytes(), (name, rank)


def test_signals_count_the_meets_of_each_block() -> None:
    function = rank_launches.load("all_reduce")
    given = rank_launches.arguments(function)
    for launch in (1, 2, 3):
        run_ranks(function, given.arrays, [{"rank": 0}, {"rank": 1}])
        for rank in (0, 1):
            assert (given.arrays[rank][f"signals_{rank}"] == launch).all()


def test_a_kernel_that_meets_does_not_run_alone() -> None:
    function = rank_launches.load("all_reduce")
    given = rank_launches.arguments(function)
    with pytest.raises(InterpreterError, match="meets other ranks"):
        run(function, given.arrays[0], {"rank": 0})


def _early(tmp_path: Path) -> Function:
    path = tmp_path / "early.py"
    path.write_text(EARLY)
    return load_kernel(path, {})


def test_a_read_before_the_meet_is_an_error_in_all_ranks(tmp_path: Path) -> None:
    x, signals = [np.ones(1, np.float32) for _ in range(2)], [np.zeros((1, 2, 2), np.uint32) for _ in range(2)]
    shared = {"x_0": x[0], "x_1": x[1], "signals_0": signals[0], "signals_1": signals[1]}
    arrays = [shared | {"out": np.zeros(1, np.float32)} for _ in range(2)]
    with pytest.raises(InterpreterError, match="reads `x_1` before ranks have met"):
        run_ranks(_early(tmp_path), arrays, [{"rank": 0}, {"rank": 1}])


def test_a_rank_that_fails_ends_those_that_wait_for_it() -> None:
    function = rank_launches.load("all_reduce")
    given = rank_launches.arguments(function)
    with pytest.raises(InterpreterError, match="rank < 2"):
        run_ranks(function, given.arrays, [{"rank": 0}, {"rank": 2}])
