"""The prover never accepts a random kernel that enumeration refutes, and rarely refuses a harmless one."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from itertools import product

import pytest

from tests import campaign
from tests.soundness.assemble_ir import assemble
from tests.soundness.description import Assign, Branch, Description, Move, Tensor
from tests.soundness.enumeration import Launch, OverBudget
from tests.soundness.memory import Memory, NoSuchLaunch
from tests.soundness.regressions import REGRESSIONS
from tests.soundness.shrink import smallest
from tests.soundness.sketch import WideKernel
from tests.soundness.verdict import (
    FAMILIES,
    PROMISES_SEEDS,
    ROWS_SEEDS,
    U64_SEEDS,
    WRITES_SEEDS,
    Verdict,
    examine,
    generate,
    generate_any,
    parse,
    text_of,
)
from tilec.ir.core import Function
from tilec.passes.prover import bijections, promises, sorted_parts, writers
from tilec.passes.prover.discharge import Discharge

BATCHES = 10
OUT = Tensor("out", "Out", ["N"])
STORE = Move("store", "out", ["b0"], [1])
ONE_FAULT = {
    "prove_races": Description("races", ["N", 2], [OUT], [STORE]),
    "prove_bounds": Description("bounds", ["N"], [Tensor("x", "In", ["N"]), OUT], [Move("load", "x", [1], [1]), STORE]),
    "prove_coverage": Description("coverage", ["N"], [OUT], [Branch((">", "b0", 0), [STORE])]),
    "prove_written_once": Description("once", ["N"], [OUT], [STORE, STORE]),
    "prove_order": Description("order", ["N"], [Tensor("s", "Scratch", ["N"])], [Move("load", "s", ["b0"], [1])]),
    "prove_arithmetic": Description(
        "wrap", ["N"], [OUT], [Assign("i", ("*", "b0", 4)), Move("store", "out", [("//", "i", 4)], [1])]
    ),
}


def report(kernel: Description | WideKernel, verdict: Verdict) -> str:
    return f"accepted, but {verdict.fault} at {verdict.sizes}; smallest such kernel:\n{smallest(kernel)}"


@pytest.mark.parametrize("batch", campaign.first(3, range(BATCHES)))
def test_no_refuted_kernel_is_accepted(batch: int, soundness_kernels: int, soundness_seed: int) -> None:
    share = soundness_kernels // BATCHES
    kinds: Counter[str] = Counter()
    for seed in range(soundness_seed + batch * share, soundness_seed + (batch + 1) * share):
        kernel = generate_any(seed)
        verdict = examine(kernel, seed)
        kinds[verdict.kind] += 1
        assert verdict.kind != "false_accept", f"seed {seed}: {report(kernel, verdict)}"
    examined = share - kinds["invalid"] - kinds["vacuous"]
    assert kinds["accepted"] >= examined // 5, "too few kernels are right to say anything about the prover"
    assert kinds["refused_confirmed"] >= examined // 10, "too few kernels are wrong to say anything about the prover"
    assert kinds["refused_harmless"] <= max(2, 0.05 * share), kinds


@pytest.mark.parametrize(
    ("first", "batch"),
    campaign.chosen(product(FAMILIES, range(BATCHES)), lambda case: not case[1]),
)
def test_no_refuted_kernel_of_a_family_is_accepted(first: int, batch: int, soundness_kernels: int) -> None:
    """Those with u64, with writes that cover an output together, with arithmetic near the limits of its dtype, with the newer
    words of the language, with promises, about rows of different integers, and with packed tensors."""
    share = soundness_kernels // BATCHES
    kinds: Counter[str] = Counter()
    for seed in range(first + batch * share, first + (batch + 1) * share):
        kernel = generate_any(seed)
        verdict = examine(kernel, seed)
        kinds[verdict.kind] += 1
        assert verdict.kind != "false_accept", f"seed {seed}: {report(kernel, verdict)}"
    assert min(kinds["accepted"], kinds["refused_confirmed"]) >= share // 12, kinds


@pytest.mark.parametrize("name", sorted(REGRESSIONS))
def test_past_disagreements_stay_settled(name: str) -> None:
    kernel, kind = REGRESSIONS[name]
    verdict = examine(kernel())
    assert verdict.kind == kind, (verdict.fault, verdict.sizes, verdict.diagnostics)


@pytest.mark.parametrize("blind", sorted(ONE_FAULT))
def test_a_blind_prover_is_caught(blind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of its analyses the prover accepts wrong kernels, and the comparison detects it."""
    kernel = ONE_FAULT[blind]
    assert examine(kernel).kind == "refused_confirmed"
    monkeypatch.setattr(sys.modules["tilec.passes.prover.prove"], blind, lambda *_: None)
    assert examine(kernel).kind == "false_accept", blind


def test_writers_outside_of_their_loops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without limits of the values that name a writer, facts that no value satisfies prove coverage: `1 << j` has none for a
    `j` below 0. The family of writes finds it."""
    kernel = generate_any(seed := WRITES_SEEDS + 123)
    assert examine(kernel, seed).kind == "refused_confirmed"
    named = writers._named  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(writers, "_may_contradict", lambda _: False)
    monkeypatch.setattr(writers, "_named", lambda *of: (([], conditions) for _, conditions in named(*of)))
    assert examine(kernel, seed).kind == "false_accept"


def test_carried_numbers_that_two_executions_share_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invariant about one number for all iterations made any map of them one-to-one. The family of promises finds it."""
    kernel = generate_any(seed := PROMISES_SEEDS + 1363)
    assert examine(kernel, seed).kind == "refused_confirmed"
    monkeypatch.setattr(bijections, "_untranslated", lambda _: [])
    assert examine(kernel, seed).kind == "false_accept"


def test_rows_that_nobody_proves_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that tie give one number twice. The family of rows finds it where no relation is proven."""
    kernel = generate_any(seed := ROWS_SEEDS + 48)
    assert examine(kernel, seed).kind == "refused_confirmed"
    monkeypatch.setattr(promises, "_relations", lambda _: [])
    assert examine(kernel, seed).kind == "false_accept"


def test_parts_of_a_sort_that_nobody_proves_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of two parts of an axis that may be equal, or are in the other order. The family of rows finds it where every
    boundary that a condition of the keys names is taken for one."""
    kernel = generate_any(seed := ROWS_SEEDS + 50)
    assert examine(kernel, seed).kind == "refused_confirmed"
    monkeypatch.setattr(sorted_parts, "_is_apart", lambda *_: Discharge("set"))
    assert examine(kernel, seed).kind == "false_accept"


def test_old_numbers_mean_the_same_kernels() -> None:
    """Families are added at numbers of their own: what a number below them meant, it means."""
    digest = hashlib.sha256()
    for seed in (*range(60), *range(U64_SEEDS, U64_SEEDS + 20)):
        digest.update(text_of(generate_any(seed)).encode())
    assert digest.hexdigest()[:16] == "9eaa6982e8f3eab7"


@pytest.mark.campaign
def test_the_frontend_means_what_the_description_means() -> None:
    """Source text through the frontend and tile IR built by hand have the same faults at the same sizes."""
    compared = 0
    for seed in range(120):
        kernel = generate(seed)
        parsed = parse(kernel)
        if parsed is None:
            continue
        for size in (1, 3, 4):
            sizes = dict.fromkeys((*parsed.dims, *kernel.scalars), size)
            found = [_faults(function, sizes) for function in (parsed, assemble(kernel))]
            assert found[0] == found[1], (seed, sizes)
            compared += found[0] is not None
    assert compared > 200


def _faults(function: Function, sizes: dict[str, int]) -> set[tuple[str, str]] | None:
    try:
        return {(fault.kind, fault.tensor) for fault in Launch(function, sizes, Memory(function, sizes, 0)).run()}
    except (NoSuchLaunch, OverBudget, ZeroDivisionError):
        return None
