"""Random kernels of ranks that the compiler accepts compute the same in the emulator as in the interpreter."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests import campaign
from tests.rank_soundness import machines
from tests.rank_soundness.drafts import with_imports
from tests.rank_soundness.machines import disagreement
from tests.rank_soundness.test_random_rank_kernels import kernel
from tests.rank_soundness.verdict import RankKernel, examine, generate, parse
from tilec.codegen import to_ptx
from tilec.interpreter import run_ranks
from tilec.ir.core import Function, VerifyError
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A, Target

BATCHES: Final = 20
SHARE: Final = 12
"""Numbers of a batch; about half are kernels that are accepted."""
ONE_EACH: Final = '''"""Sum, with a tile for each block."""


class N(Dim):
    """elements"""


@tilec.kernel
def random_kernel(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 2], rank: i32):
    grid(2)
    requires(N <= 8)
    meet(signals, rank)
    v = load(x[0], bid(0), shape=4, pad=0) + load(x[1], bid(0), shape=4, pad=0)
    store(out, bid(0), v, mask=True)
'''


@pytest.mark.parametrize("batch", campaign.first(1, range(BATCHES)))
def test_devices_compute_what_ranks_of_the_interpreter_do(batch: int) -> None:
    compared = 0
    for seed in range(batch * SHARE, (batch + 1) * SHARE):
        drawn = generate(seed)
        function, _ = parse(drawn)
        if drawn.edit is None and function is not None and examine(drawn, seed, 2).kind == "accepted":
            found = disagreement(drawn, seed)
            assert not found, f"{seed}: {found}\n{drawn.text}"
            compared += found is not None
    assert compared >= SHARE // 6


def test_a_tile_for_each_block_can_be_built() -> None:
    assert disagreement(RankKernel(with_imports(ONE_EACH), "one each")) == ""


def test_a_read_before_the_meet_that_nobody_executes_is_proven_and_not_built() -> None:
    """The prover shows that no block executes it; code is made only of kernels whose text reads parts after the meet."""
    early = kernel(early="first = load(x[1], 0) if rank > 1 else 0.0")
    assert examine(early).kind == "accepted"
    function, _ = parse(early)
    assert function is not None
    with pytest.raises(VerifyError, match="before ranks have met"):
        prepare(function, SM_90A)


def test_ranks_that_compute_something_else_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = kernel().text.replace("load(x[0], i) + load(x[1], i)", "load(x[0], i) + f32(rank)")
    assert disagreement(RankKernel(text, "sum")) == ""

    def turned(function: Function, arrays: list[dict[str, Any]], scalars: list[dict[str, int]]) -> None:
        run_ranks(function, arrays, scalars[::-1])

    monkeypatch.setattr(machines, "run_ranks", turned)
    assert str(disagreement(RankKernel(text, "sum"))).startswith("out of rank 0")


def _impatient(mlir: str, target: Target) -> str:
    return to_ptx(mlir, target).replace("@late bra again;", "")


def test_devices_that_do_not_wait_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "to_ptx", _impatient)
    assert "peer" in {str(disagreement(kernel(), seed)).partition(":")[0] for seed in range(4)}
