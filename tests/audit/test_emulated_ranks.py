"""The audit runs a kernel of several ranks in all of them, compares what each then has with the interpreter's ranks, and finds
a mistake in what orders their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import rank_launches
from tilec.audit import emulation
from tilec.audit.emulation import emulated
from tilec.emulator import UnsupportedPtx, emulate


def audited(kernel: str, ptx: str, manifest: Any, **given: int) -> dict[str, Any]:
    return emulated(
        manifest, rank_launches.load(kernel, given.get("ranks", 2)), ptx, launches=given.get("launches", 2), seeds=1
    )


@pytest.mark.parametrize("kernel", [*rank_launches.COLLECTIVES, rank_launches.MEET])
def test_a_kernel_of_ranks_is_clean_and_gives_what_the_interpreter_does(kernel: str) -> None:
    found = audited(kernel, *rank_launches.compiled(kernel))
    assert (found["status"], found["reason"]) == ("clean", "")
    assert all(row["differs"] == [] and "not_compared" not in row for row in found["launches"])
    assert any("blocks" not in row for row in found["launches"]), "a launch is run whole"


def test_a_launch_of_which_some_blocks_run_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """In four ranks two of three blocks are resident together."""
    ptx, manifest = rank_launches.compiled("all_reduce", ranks=4)
    monkeypatch.setattr(emulation, "RESIDENT", 4 * 2 * manifest.block)
    found = audited("all_reduce", ptx, manifest, ranks=4, launches=1)
    assert found["status"] == "clean"
    assert [(row["blocks"], row["differs"]) for row in found["launches"]] == [(2, [])]


@pytest.mark.parametrize("kernel", ["all_reduce", "all_reduce_add", "all_gather"])
def test_a_kernel_that_reads_one_rank_twice_differs(kernel: str) -> None:
    """Clean, because every read is ordered, and wrong in both ranks."""
    ptx, manifest = rank_launches.compiled(kernel)
    abi = tuple(replace(slot, name="x_1") if slot.name == "x_0" else slot for slot in manifest.abi)
    assert abi != manifest.abi
    found = audited(kernel, ptx, replace(manifest, abi=abi), launches=1)
    assert found["status"] == "clean"
    written = "residual" if kernel == "all_reduce_add" else "out"
    assert found["launches"][0]["differs"] == [f"{written}@0", f"{written}@1"]


def test_a_release_that_orders_nothing_is_a_fault() -> None:
    ptx, manifest = rank_launches.compiled("all_reduce")
    wrong = ptx.replace("st.release.sys", "st.relaxed.sys")
    found = audited("all_reduce", wrong, manifest, launches=1)
    assert found["status"] == "faulty"
    assert "memory of another device" in found["launches"][0]["faults"][0]


def test_a_launch_of_one_rank_is_refused_before_it_waits_for_ever() -> None:
    ptx, manifest = rank_launches.compiled(rank_launches.MEET)
    with pytest.raises(UnsupportedPtx, match="meets other ranks, alone"):
        emulate(ptx, manifest, {}, {})
