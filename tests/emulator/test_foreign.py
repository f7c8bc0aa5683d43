"""PTX that Triton made, against NumPy: no fault, and the right outputs, whatever order the threads run in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign import in_turn
from tests.emulator import foreign_cases
from tests.emulator.foreign_run import emulate


@pytest.mark.parametrize(("name", "seed"), in_turn(sorted(foreign_cases.CASES), (0, 1), 2))
def test_triton_kernels_emulate_without_fault_and_agree_with_numpy(name: str, seed: int) -> None:
    given = foreign_cases.launch(name, seed)
    report = emulate(name, given, seed=seed)
    assert report.clean, "\n".join(map(str, report.faults))  # Triton's threads may store one value several times
    for output, exact in given.expected.items():
        found = report.tensors[output].astype(np.float64)
        defined = ~np.isnan(exact)
        scale = np.abs(exact[defined]).max()
        assert np.abs(found[defined] - exact[defined]).max() <= given.tolerance * scale
