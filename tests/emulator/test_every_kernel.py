"""The PTX of every shipped kernel emulates without a fault, in any order of threads, and agrees with the float64 references.

Kernels with tensor cores and asynchronous copies are compiled for all main architectures, and so is each kernel for those on
which a producer copies its operands; the others for one each, round-robin. The default run includes the first size of each
kernel; of those compiled for all architectures one for sm_90 and one for another, and one for each architecture without `wgmma`
on which a producer copies; each with one order of threads, round-robin. Of the other targets there is one for each kernel and
size, of which the default run has one for each target, and products on tensor cores for a target before sm_90.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests import campaign, shipped_launches
from tests.clean import check_clean
from tests.emulator import shipped_run
from tilec.target.targets import MAIN_TARGETS, TARGETS

ARCHS = [target.name for target in MAIN_TARGETS]
EVERYWHERE = ("matmul", "matmul_split", "flash_attention", "decode_attention", "matvec")
MAIN_CASES = [
    (name, number, arch)
    for turn, name in enumerate(sorted(shipped_launches.SIZES))
    for number in range(len(shipped_launches.SIZES[name]))
    for arch in ARCHS
    if (name in EVERYWHERE and number == len(shipped_launches.SIZES[name]) - 1)
    or ARCHS[(turn + number) % len(ARCHS)] == arch
    or shipped_run.is_fed_by_producer(name, number, arch)
]
OTHERS = [target.name for target in TARGETS if target not in MAIN_TARGETS]
OLDER = ("sm_80", "sm_86", "sm_89")
OTHER_CASES = [
    (name, number, OTHERS[(turn + number) % len(OTHERS)])
    for turn, name in enumerate(sorted(shipped_launches.SIZES))
    for number in range(len(shipped_launches.SIZES[name]))
]
CASES = [*MAIN_CASES, *OTHER_CASES]
LARGE = {("matmul", 0), ("matmul", 2), ("matmul_split", 1), ("matmul_silu_mul", 0), ("matmul_silu_mul", 2)}
"""The slowest sizes; last, so that the default run uses them only if a kernel has no other."""
CASES.sort(key=lambda case: case[:2] in LARGE)


def _orders(turn: int, fed: bool) -> tuple[int, ...]:
    first = turn % 2
    return (first, 1 - first, 2, 3) if fed else (first, 1 - first)


SEEDED = [
    (name, number, arch, seed)
    for turn, (name, number, arch) in enumerate(CASES)
    for fed in (shipped_run.is_fed_by_producer(name, number, arch) and arch != "sm_90a",)
    for seed in (_orders(turn, fed) if fed or arch == "sm_90a" or name not in EVERYWHERE else (0,))
]
"""Each case and a seed, which determines the order of its threads; the first seed of the cases alternates."""


def kind(case: tuple[str, int, str, int]) -> tuple[str, ...]:
    """The form of a kernel, or the target if it is none of the main ones; for kernels of `EVERYWHERE` it also separates sm_90
    from architectures without `wgmma`, and those of them on which a producer copies from the others."""
    name, number, arch, _ = case
    if arch in OTHERS:
        return ("products", *OLDER) if name in EVERYWHERE and arch in OLDER else (arch,)
    fed = (arch, "fed") if arch != "sm_90a" and shipped_run.is_fed_by_producer(name, number, arch) else ()
    return (name, "wgmma" if arch == "sm_90a" else "mma", *fed) if name in EVERYWHERE else (name, *fed)


@pytest.mark.parametrize(("name", "number", "arch", "seed"), campaign.one_of_each(SEEDED, kind))
def test_a_shipped_kernel_emulates_without_fault_and_agrees_with_its_reference(
    name: str, number: int, arch: str, seed: int
) -> None:
    kernel = shipped_run.compiled(name, number, arch)
    arrays = shipped_launches.make_arrays(kernel.function, kernel.env)
    exact = shipped_launches.expected(kernel.function, arrays, kernel.env)
    report = shipped_run.emulate(kernel, arrays, seed=seed)
    check_clean(report)
    assert report.statistics["coverage"] > 0.1
    for output, truth in exact.items():
        found = report.tensors[output]
        if found.dtype.kind in "iu":
            assert (found == truth).all()
            continue
        scale = np.abs(truth[np.isfinite(truth)]).max()
        with np.errstate(invalid="ignore"):
            difference = np.abs(found.astype(np.float64) - truth.reshape(found.shape))
        difference[found.astype(np.float64) == truth.reshape(found.shape)] = 0
        assert difference.max() <= shipped_run.tolerance(kernel.function, found) * scale
