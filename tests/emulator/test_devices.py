"""Collectives in the emulator: several devices run a launch at once, interleaved in different ways, and no schedule shows a
fault; with a mistake in what orders their memory, one of a few schedules does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests import rank_launches
from tests.clean import check_clean
from tilec.emulator.errors import Limits, Report, UnsupportedPtx
from tilec.emulator.ranks import emulate_ranks
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

SEEDS = range(8)
LIMITS = Limits(instructions=400_000)
SHORT = Limits(instructions=20_000)


def emulated(
    kernel: str, seed: int = 0, ranks: int = 2, text: str | None = None, target: Target = SM_90A, arrays: Any = None,
    limits: Limits = LIMITS,
) -> tuple[Report, rank_launches.Arguments]:  # fmt: skip
    ptx, manifest = rank_launches.compiled(kernel, ranks, target=target)
    given = rank_launches.arguments(rank_launches.load(kernel, ranks), ranks)
    report = emulate_ranks(
        ptx if text is None else text, manifest, given.arrays if arrays is None else arrays, given.values, seed=seed,
        limits=limits,
    )  # fmt: skip
    return report, given


def check_results(kernel: str, report: Report, given: rank_launches.Arguments) -> None:
    for rank in range(len(given.arrays)):
        for name, array in rank_launches.expected(rank_launches.load(kernel, len(given.arrays)), given, rank).items():
            found = report.tensors[f"{name}@{rank}"]
            if name == "squares":  # which NumPy adds in another order
                assert np.allclose(found, array, rtol=1e-6)
                assert found.tobytes() == report.tensors[f"{name}@0"].tobytes()
            else:
                assert found.tobytes() == array.tobytes(), (name, rank)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kernel", rank_launches.COLLECTIVES)
def test_a_kernel_computes_its_collective_in_every_rank_whatever_the_schedule(kernel: str, seed: int) -> None:
    report, given = emulated(kernel, seed)
    check_clean(report)
    check_results(kernel, report, given)


@pytest.mark.parametrize("target", [target for target in MAIN_TARGETS if target != SM_90A], ids=lambda target: target.name)
def test_other_targets_do_too(target: Target) -> None:
    report, given = emulated("all_reduce_add_scaled", 2, target=target)
    check_clean(report)
    check_results("all_reduce_add_scaled", report, given)


def test_four_ranks_add_in_their_order() -> None:
    report, given = emulated("all_reduce", 3, ranks=4)
    check_clean(report)
    check_results("all_reduce", report, given)


@pytest.mark.parametrize("first", [0, 2**32 - 2])
def test_launches_follow_each_other_with_no_work_by_the_host_and_counts_may_wrap(first: int) -> None:
    _, given = emulated("all_reduce")
    arrays: Sequence[dict[str, Any]] = [dict(own) for own in given.arrays]
    for name in ("signals_0", "signals_1"):
        for own in arrays:
            own[name] = np.full_like(own[name], first)
    for launch in (1, 2, 3):
        report, _ = emulated("all_reduce", launch, arrays=arrays)
        check_clean(report)
        check_results("all_reduce", report, given)
        for own in arrays:
            own.update({name: report.tensors[name] for name in ("signals_0", "signals_1")})
            assert (own["signals_0"] == np.uint32((first + launch) % 2**32)).all()


def test_a_kernel_of_nothing_but_the_meet() -> None:
    ptx, manifest = rank_launches.compiled(rank_launches.MEET)
    signals = {f"signals_{rank}": np.zeros((rank_launches.BLOCKS, 2, 2), np.uint32) for rank in (0, 1)}
    report = emulate_ranks(ptx, manifest, [signals, signals], [{"rank": 0}, {"rank": 1}], seed=5)
    check_clean(report)
    assert report.tensors["signals_0"][:, :, :].tolist() == [[[1, 1], [1, 1]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]


MISTAKES = {
    "release without order": ("st.release.sys", "st.relaxed.sys", "peer"),
    "release as a plain store": ("st.release.sys.global", "st.global", "race"),
    "release of the device only": ("st.release.sys", "st.release.gpu", "peer"),
    "acquire without order": ("ld.acquire.sys", "ld.relaxed.sys", "peer"),
    "acquire as a plain load": ("ld.acquire.sys.global", "ld.global", "race"),
    "acquire of the device only": ("ld.acquire.sys", "ld.acquire.gpu", "peer"),
    "no signal": ("st.release.sys.global.b32 [{there}], count;", "", "limit"),
    "signals to oneself": ("st.release.sys.global.b32 [{there}]", "st.release.sys.global.b32 [{here}]", "peer"),
    "no wait for the other": ("@late bra again;", "", "peer"),
    "a count that stays": ("add.u32 count, count, 1;", "", "peer"),
    "no barrier of the block": ("bar.sync \t0;", "", "peer"),
    "no wait for earlier kernels": ("griddepcontrol.wait;", "", "dependency"),
    "the read-only path": ("ld.global.v4", "ld.global.nc.v4", "non-coherent"),
}
"""By mistake: a part of the text, what replaces it, and the fault that some schedule then shows."""


def with_mistake(name: str, text: str) -> str:
    addresses = {
        "there": text.partition("st.release.sys.global.b32 [")[2].partition("]")[0],
        "here": text.partition("ld.acquire.sys.global.b32 seen, [")[2].partition("]")[0],
    }
    old, new, _ = (part.format(**addresses) for part in MISTAKES[name])
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_order_of_memory_is_found_by_some_schedule(name: str) -> None:
    text, _ = rank_launches.compiled("all_reduce")
    found: set[str] = set()
    for seed in SEEDS:
        report, _ = emulated("all_reduce", seed, text=with_mistake(name, text), limits=SHORT)
        found |= {fault.kind for fault in report.faults}
        if found:
            break
    assert MISTAKES[name][2] in found, (name, found)


def test_without_a_mistake_no_schedule_shows_a_fault() -> None:
    for seed in SEEDS:
        report, _ = emulated("all_reduce", seed)
        check_clean(report)


def test_blocks_that_are_not_resident_together_are_refused() -> None:
    ptx, manifest = rank_launches.compiled("all_reduce")
    given = rank_launches.arguments(rank_launches.load("all_reduce"))
    with pytest.raises(UnsupportedPtx, match="not all resident"):
        emulate_ranks(ptx, manifest, given.arrays, given.values, limits=Limits(resident_lanes=64))
