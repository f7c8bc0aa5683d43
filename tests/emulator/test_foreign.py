"""PTX compiled by Triton, against NumPy: no fault except known deviations, and the right outputs, in any order of threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign import in_turn
from tests.emulator import foreign_cases
from tests.emulator.foreign_run import emulate
from tilec.emulator.ordering.proxies import COUNTS


@pytest.mark.parametrize(("name", "seed"), in_turn(sorted(foreign_cases.CASES), (0, 1), 2))
def test_triton_kernels_emulate_without_fault_and_agree_with_numpy(name: str, seed: int) -> None:
    foreign_launch = foreign_cases.launch(name, seed)
    report = emulate(name, foreign_launch, seed=seed)
    found_kinds = {fault.kind for fault in report.faults}
    assert found_kinds == foreign_cases.DEPARTURES.get(name, set()), "\n".join(map(str, report.faults))
    if "proxy" in found_kinds:
        assert {fault.message for fault in report.faults} == {COUNTS}
    for output, exact in foreign_launch.expected.items():
        found = report.tensors[output].astype(np.float64)
        defined = ~np.isnan(exact)
        scale = np.abs(exact[defined]).max()
        assert np.abs(found[defined] - exact[defined]).max() <= foreign_launch.tolerance * scale


def test_a_store_that_nobody_speaks_for_does_not_replicate(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = foreign_cases.REPLICATING["softmax-sm_90"]
    monkeypatch.setitem(foreign_cases.REPLICATING, "softmax-sm_90", others)
    report = emulate("softmax-sm_90", foreign_cases.launch("softmax-sm_90", 0))
    assert [(fault.kind, fault.ptx_line) for fault in report.faults] == [("race-same-value", first)]
