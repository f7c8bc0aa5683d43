"""Kernels that were once accepted although unsafe, or accepted and then not built: each is refused now, or works.

Each file in `corpus` is one such bug. If the prover accepts a kernel, enumeration finds no fault, the kernel is lowered, and
the prepared function accesses the same elements. For kernels that pass tiles through shared memory, the summed boxes are
checked elsewhere (`tests/programs/test_product_loops.py`).
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.programs.edge_programs import accessed_elements
from tests.soundness.memory import NoSuchLaunch
from tests.soundness.verdict import examine_function, valuations
from tilec.frontend import load_kernel
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A

KERNELS = sorted(Path(__file__).with_name("corpus").glob("*.py"))
REFUSED = {
    "false_counterexample": {"E0306"},
    "n1_nan": {"E0302"},
    "p1_carried_tile": {"E0303"},
    "p2_carried_scatter": {"E0303"},
    "p3_carried_race": {"E0401", "E0403"},
    "q1_contradiction": {"E0307"},
    "q2_values": {"E0307"},
    "t1_two_divisors": {"E0306"},
    "u1_two_sums": {"E0303"},
    "u2_sums_of_two_shapes": {"E0303"},
    "v1_declared_class": {"E0306"},
    "v2_clamped_bf16": {"E0306"},
    "v3_cast_f8": {"E0306"},
    "v4_two_roundings": {"E0306"},
}


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_each_is_refused_or_fixed(path: Path) -> None:
    verdict = examine_function(load_kernel(path, {}), launches=8)
    assert set(verdict.codes) == REFUSED.get(path.stem, set()), verdict
    assert verdict.kind != "false_accept" and not verdict.wrong_examples, verdict
    if path.stem in REFUSED:
        return
    function, prepared = load_kernel(path, {}), prepare(load_kernel(path, {}), SM_90A)
    assert lower(prepared, SM_90A).mlir
    if any(isinstance(op, SharedAlloc) for op in prepared.body.walk()):
        return
    checks = prove(function).launch_checks
    for sizes, sampled in valuations(function, checks, random.Random(1), 6):
        with suppress(NoSuchLaunch):
            out_of_bounds, accessed = ([], {}) if sampled else accessed_elements(prepared, sizes)
            assert not out_of_bounds and (sampled or accessed == accessed_elements(function, sizes)[1]), sizes


@pytest.mark.parametrize("name", ["v2_clamped_bf16", "v3_cast_f8"])
def test_the_oracle_sees_what_a_build_would_accept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs for the numbers of another dtype, which only the claims of a build have, are found as false."""
    monkeypatch.setattr("tilec.ir.claims._are_exchangeable", Mock(return_value=True))
    path = next(one for one in KERNELS if one.stem == name)
    assert examine_function(load_kernel(path, {}), launches=8).kind == "false_accept"
