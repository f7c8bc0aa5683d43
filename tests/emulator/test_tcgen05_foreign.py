"""sm_100a PTX by Triton, against NumPy: no fault except known departures, and the right outputs, in any order of threads and of
asynchronous completions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign import chosen
from tests.emulator.tcgen05_cases import CASES, emulate, launch_of, text
from tilec.emulator.errors import NOTES
from tilec.emulator.ordering.proxies import COUNTS

ROLES = "warps of one warpgroup execute different setmaxnreg"
UNFENCED = [name for name in CASES if CASES[name]["tensor_maps"] and not name.startswith(("pair", "clc"))]
DEPARTURES = {name: {("proxy", COUNTS)} for name in UNFENCED}
for _name in ("attention_bf16_ws-sm_100", "matmul_persistent_ws-sm_100"):
    DEPARTURES[_name] |= {("divergent", ROLES)}
"""Rules of the PTX ISA that Triton's PTX violates: no fence between `mbarrier.init` and copies that signal the mbarrier, and
roles of single warps that set their registers with a setmaxnreg of their own."""
SLOW = (
    "attention_bf16_ws-sm_100", "attention_bf16_d128-sm_100", "pair_bf16_256x128-sm_100", "pair_fp8_256x128-sm_100",
    "matmul_tma_bf16_2cta-sm_100",
)  # fmt: skip
PAIRS = [(name, seed) for name in sorted(CASES) for seed in range(4)]


def is_quick(case: tuple[str, int]) -> bool:
    """One launch of each text; a seed other than 0 for every third."""
    name, seed = case
    here = sorted(CASES).index(name)
    return name not in SLOW and seed == (here % 3 == 0 and not name.startswith(("attention", "pair")))


@pytest.mark.parametrize(("name", "seed"), chosen(PAIRS, is_quick))
def test_triton_kernels_emulate_without_fault_and_agree_with_numpy(name: str, seed: int) -> None:
    given = launch_of(name, seed)
    report = emulate(name, given, seed=seed)
    found = {(fault.kind, fault.message) for fault in report.faults}
    assert found == DEPARTURES.get(name, set()), "\n".join(map(str, report.faults))
    assert {note.kind for note in report.notes} <= set(NOTES)
    for output, exact in given.expected.items():
        values = report.tensors[output].astype(np.float64)
        defined = ~np.isnan(exact)
        assert np.abs(values[defined] - exact[defined]).max() <= 2.0**-8 * np.abs(exact[defined]).max()


def test_the_fences_and_waits_that_triton_leaves_out_are_notes() -> None:
    report = emulate("matmul_tma_bf16_m64-sm_100", launch_of("matmul_tma_bf16_m64-sm_100"))
    assert {note.kind for note in report.notes} == {"tensor-fence", "tensor-wait"}


REMOVED = [
    ("matmul_tma_bf16_m64-sm_100", 72, "tcgen05.wait::st", "async"),
    ("matmul_tma_bf16_m64-sm_100", 473, "tcgen05.wait::ld", "async"),
    ("matmul_persistent_ws-sm_100", 233, "bar.sync", "race"),
    ("matmul_pointers-sm_100", 223, "fence.proxy.async", "proxy"),
    ("matmul_nvfp4-sm_100", 252, "tcgen05.wait::st", "async"),
    ("pair_bf16_128x128-sm_100", 437, "tcgen05.wait::ld", "async"),
]
"""Lines whose removal leaves the results right, with the kind of fault that must find it."""


@pytest.mark.parametrize(("name", "line", "instruction", "kind"), REMOVED)
def test_a_synchronisation_that_triton_needs_is_missed(name: str, line: int, instruction: str, kind: str) -> None:
    lines = text(name).split("\n")
    assert instruction in lines[line - 1]
    lines[line - 1] = ""
    report = emulate(name, launch_of(name, 1), ptx="\n".join(lines))
    assert kind in {fault.kind for fault in report.faults if (fault.kind, fault.message) not in DEPARTURES.get(name, set())}
