"""Faults planted in PTX are found; `ci/bench/judges.py emulator_faults` plants them in every kind of schedule."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ci.bench.judges.ptx_mutants import mutants
from tests.emulator import foreign_cases
from tests.emulator.foreign_run import emulate

PLANTED = [
    # file, class, which occurrence, the kind of fault, or "output"
    ("softmax-sm_90", "barrier dropped", 0, "race"),
    ("softmax-sm_90", "barrier dropped", 1, "race"),
    ("softmax-sm_100", "global pointer shifted", 0, "output"),
    ("softmax-sm_120", "shared pointer shifted", 0, "bounds"),
    ("softmax-sm_90", "guard negated", 1, "output"),
    ("softmax-sm_120", "guard dropped", 2, "bounds"),
    ("softmax-sm_90", "shuffle lane wrong", 0, "output"),
    ("softmax-sm_90", "operands exchanged", 0, "output"),
    ("softmax-sm_90", "store dropped", 0, "uninitialised"),
    ("matmul-sm_90", "cp.async wait dropped", 0, "async"),
    ("matmul-sm_90", "cp.async commit dropped", 1, "async"),
    ("matmul-sm_90", "wgmma wait dropped", 1, "async"),
    ("matmul-sm_90", "wgmma wait count one too high", 1, "async"),
    ("matmul-sm_90", "wgmma fence dropped", 0, "async"),
    ("matmul-sm_90", "proxy fence dropped", 0, "proxy"),
    ("matmul-sm_120", "fragment registers swapped", 0, "output"),
    ("matmul-sm_120", "matrix transposition changed", 0, "output"),
    ("matmul-sm_120", "cp.async wait count one too high", 0, "async"),
    ("matmul_tma-sm_90", "mbarrier wait dropped", 0, "async"),
    ("matmul_tma-sm_90", "mbarrier phase wrong", 0, "async"),
    ("matmul_tma-sm_90", "expected bytes wrong", 0, "deadlock"),
    ("matmul_tma-sm_90", "proxy fence dropped", 0, "proxy"),
    ("matmul_tma-sm_90", "mbarrier init dropped", 0, "mbarrier"),
]


@cache
def _original(name: str) -> tuple[foreign_cases.Launch, Any]:
    foreign_launch = foreign_cases.launch(name, 1)
    return foreign_launch, emulate(name, foreign_launch)


@pytest.mark.parametrize(("name", "kind", "index", "found"), PLANTED)
def test_a_planted_mistake_is_found(name: str, kind: str, index: int, found: str) -> None:
    foreign_launch, original = _original(name)
    mutant = list(mutants(foreign_cases.text(name), kind))[index]
    report = emulate(name, foreign_launch, text=mutant.text)
    if found == "output":
        changed = [key for key in foreign_launch.expected if report.tensors[key].tobytes() != original.tensors[key].tobytes()]
        assert changed
    else:
        known = {(fault.kind, fault.message) for fault in original.faults}
        assert found in {fault.kind for fault in report.faults if (fault.kind, fault.message) not in known}, report.faults
