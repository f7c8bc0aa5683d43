"""No random kernel in which ranks meet is accepted although running every rank and block refutes it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Final

import pytest

from tests import campaign
from tests.rank_soundness.drafts import with_imports
from tests.rank_soundness.mistakes import MISTAKES, made
from tests.rank_soundness.shipped import SHIPPED, mutants, text_of
from tests.rank_soundness.verdict import RankKernel, RankVerdict, examine, generate
from tilec.ir.ops import Meet

BATCHES: Final = 25
SHARE: Final = 12
"""Kernels of a batch."""
KERNEL: Final = '''"""Sum."""


class N(Dim):
    """elements"""


@tilec.kernel
def random_kernel(
    x: Peer[f32, {ranks}, N], out: Out[f32, N], signals: Signal[{ranks}, 2], others: Signal[{ranks}, 2], rank: i32
):
    grid(2)
    requires(N <= 1 << 20)
    {early}
    meet({given})
    for i in range(bid(0), N, 2):
        store(out, i, load(x[0], i) + load(x[1], i))
'''
BRANCH: Final = '''"""Zeros in one rank."""


@tilec.kernel
def random_kernel(out: InOut[f32, 2], signals: Signal[2, 2], rank: i32):
    grid(2)
    if rank == 0:
        store(out, bid(0), 0.0)
    meet(signals, rank)
'''
MEETS: Final = {
    "half of the number": (4, "signals, rank // 2", "signal"),
    "the next number": (4, "signals, (rank + 1) % 4", "signal"),
    "a dim as the number": (2, "signals, N", "signal"),
    "signals backwards": (2, "signals[::-1], rank", "signal"),
    "signals in another order": (3, "(signals[0], signals[2], signals[1]), rank", "signal"),
    "signals of two parameters": (2, "(signals[0], others[1]), rank", "deadlock"),
}
"""Meets whose ranks do not find each other: how many there are, what the meet is given, a fault that enumeration shows."""
READS: Final = {
    "of another rank": ("first = load(x[0], 0)", "refused_confirmed"),
    "of a rank in a branch": ("first = load(x[1], 0) if rank == 0 else 0.0", "refused_confirmed"),
    "in the last block": ("first = load(x[1], 0) if bid(0) > 0 else 0.0", "refused_confirmed"),
    "that no rank executes": ("first = load(x[1], 0) if rank > 1 else 0.0", "accepted"),
    "that no block executes": ("first = load(x[1], 0) if bid(0) > 1 else 0.0", "accepted"),
}
"""Reads before the meet, and the verdict."""


def kernel(ranks: int = 2, given: str = "signals, rank", early: str = "first = 0.0") -> RankKernel:
    return RankKernel(with_imports(KERNEL.format(ranks=ranks, given=given, early=early)), "sum")


def _finds_nothing(*_: object) -> None:
    """In place of a check."""


def check(kernel: RankKernel, verdict: RankVerdict) -> None:
    assert verdict.kind != "false_accept", f"{kernel.text}\n{kernel.mistakes}: accepted, but {verdict.fault}"


@pytest.mark.parametrize("batch", campaign.first(2, range(BATCHES)))
def test_no_refuted_kernel_is_accepted(batch: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(batch * SHARE, (batch + 1) * SHARE):
        verdict = examine(drawn := generate(seed), seed)
        check(drawn, verdict)
        kinds[verdict.kind] += 1
    assert kinds["accepted"] >= SHARE // 6, kinds
    assert kinds["refused_harmless"] <= SHARE // 3, kinds


@pytest.mark.parametrize("name", campaign.chosen(SHIPPED, lambda name: name == "rank_meet"))
def test_no_refuted_mutant_of_a_shipped_kernel_is_accepted(name: str) -> None:
    kinds: Counter[str] = Counter()
    for mutant in mutants(name, 2, 12):
        verdict = examine(mutant.kernel, launches=6)
        check(mutant.kernel, verdict)
        kinds[verdict.kind] += 1
    assert kinds["invalid"] >= 5 and (kinds["refused_confirmed"] >= 5 or name == "rank_meet"), kinds


@pytest.mark.parametrize("name", MEETS)
def test_a_meet_in_which_ranks_do_not_find_each_other_is_refuted(name: str) -> None:
    """By enumeration; what the compiler says of it is the test below."""
    ranks, given, fault = MEETS[name]
    found = [examine(kernel(ranks, given), seed) for seed in range(3)]
    faults = {str(verdict.fault).split(" ")[0] for verdict in found if verdict.fault is not None}
    assert fault in faults or {verdict.kind for verdict in found} == {"invalid"}, found


@pytest.mark.parametrize("name", MEETS)
def test_a_meet_in_which_ranks_do_not_find_each_other_is_refused(name: str) -> None:
    ranks, given, _ = MEETS[name]
    assert examine(kernel(ranks, given)).kind == "invalid"


@pytest.mark.parametrize("name", READS)
def test_reads_before_the_meet_have_their_verdicts(name: str) -> None:
    early, kind = READS[name]
    assert examine(kernel(early=early)).kind == kind


@pytest.mark.parametrize("name", READS)
def test_a_prover_blind_for_meets_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    early, kind = READS[name]
    monkeypatch.setattr(sys.modules["tilec.passes.prover.prove"], "prove_meets", _finds_nothing)
    assert examine(kernel(early=early)).kind == {"refused_confirmed": "false_accept"}.get(kind, kind)


@pytest.mark.parametrize("edit", ["meet_in_a_region", "meet_again"])
def test_a_verifier_blind_for_meets_is_caught(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meet that only some blocks or ranks execute, or not equally often, past the frontend."""
    changed = [RankKernel(with_imports(BRANCH), "", (edit,), seed) for seed in range(8)]
    kinds = {examine(one).kind for one in changed}
    assert "false_accept" not in kinds and "refused_confirmed" in kinds
    monkeypatch.setattr(Meet, "verify_in", _finds_nothing)
    assert "false_accept" in {examine(one).kind for one in changed}


def test_each_mistake_is_made_of_some_kernel() -> None:
    texts = [text_of("all_gather"), *(generate(seed).text for seed in range(6))]
    for name in MISTAKES:
        assert any(made(name, random.Random(seed), text) not in (None, text) for seed, text in enumerate(texts)), name
