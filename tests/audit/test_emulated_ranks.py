"""The audit runs a kernel of several ranks in all of them, and finds a mistake in what orders their memory."""

from __future__ import annotations

import pytest

from tests import rank_launches
from tilec.audit.emulation import emulated
from tilec.emulator import UnsupportedPtx, emulate


@pytest.mark.parametrize("kernel", ["all_reduce", rank_launches.MEET])
def test_a_kernel_of_ranks_is_clean(kernel: str) -> None:
    ptx, manifest = rank_launches.compiled(kernel)
    found = emulated(manifest, rank_launches.load(kernel), ptx, launches=2, seeds=1)
    assert (found["status"], found["reason"]) == ("clean", "")
    assert all("not_compared" in row for row in found["launches"])


def test_a_release_that_orders_nothing_is_a_fault() -> None:
    ptx, manifest = rank_launches.compiled("all_reduce")
    wrong = ptx.replace("st.release.sys", "st.relaxed.sys")
    found = emulated(manifest, rank_launches.load("all_reduce"), wrong, launches=1, seeds=1)
    assert found["status"] == "faulty"
    assert "memory of another device" in found["launches"][0]["faults"][0]


def test_a_launch_of_one_rank_is_refused_before_it_waits_for_ever() -> None:
    ptx, manifest = rank_launches.compiled(rank_launches.MEET)
    with pytest.raises(UnsupportedPtx, match="meets other ranks, alone"):
        emulate(ptx, manifest, {}, {})
