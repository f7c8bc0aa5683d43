"""Removes every barrier of shipped kernels, one at a time: the race detector reports it exactly if the barrier orders
accesses."""

from __future__ import annotations

import pytest

from tests import shipped_launches
from tests.emulator.barrier_oracle import barriers, without
from tests.emulator.shipped_run import compiled, emulate

KERNELS = [("rms_norm", 1), ("advance", 1), ("matvec", 0), ("qk_norm_rope_kv", 0), ("matvec_argmax", 1), ("decode_merge", 0)]
ARCHITECTURES = ("sm_90a", "sm_100a", "sm_120a")


@pytest.mark.parametrize(("name", "number", "arch"), [(*row, ARCHITECTURES[k % 3]) for k, row in enumerate(KERNELS)])
def test_a_barrier_without_which_threads_race_is_missed(name: str, number: int, arch: str) -> None:
    kernel = compiled(name, number, arch)
    arrays = shipped_launches.make_arrays(kernel.function, kernel.env)
    report, needed = barriers(lambda: emulate(kernel, arrays))
    assert report.clean and needed, [str(fault) for fault in report.faults]
    found = {line: not emulate(kernel, arrays, text=without(kernel.ptx, line)).clean for line in needed}
    assert found == needed


def test_the_kernels_above_have_barriers_of_both_kinds() -> None:
    kernel = compiled("matvec_argmax", 1, "sm_90a")
    arrays = shipped_launches.make_arrays(kernel.function, kernel.env)
    _, needed = barriers(lambda: emulate(kernel, arrays))
    assert sorted(needed.values()) == [False, True], "one iteration needs no barrier before the next"
