"""Stores that replicate: several unordered threads may write one value to one address only from the same named store."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests import shipped_launches
from tests.emulator import shipped_run
from tests.emulator.tiny import kinds, launch, program

STORES = """mov.u32 %r3, smem; {marks[0]} st.shared.u32 [%r3], {values[0]}; {marks[1]} st.shared.u32 [%r3], {values[1]};
.loc 1 9 1
bar.sync 0; ld.shared.u32 %r5, [%r3];"""
NAMED, OTHER, PLAIN = "\n.loc 1 4 2\n", "\n.loc 1 5 2\n", "\n.loc 1 4 1\n"


@pytest.mark.parametrize(
    ("marks", "values", "file", "faults"),
    [
        ((NAMED, NAMED), ("7", "7"), "KERNEL.tir", set()),
        ((NAMED, NAMED), ("%t", "%t"), "KERNEL.tir", {"race"}),
        ((PLAIN, PLAIN), ("7", "7"), "KERNEL.tir", {"race-same-value"}),
        ((NAMED, PLAIN), ("7", "7"), "KERNEL.tir", {"race-same-value"}),
        ((NAMED, OTHER), ("7", "7"), "KERNEL.tir", {"race-same-value"}),
        ((NAMED, NAMED), ("7", "7"), "softmax.py", {"race-same-value"}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_store_that_is_named_as_replicating_may_conflict_with_itself(
    marks: tuple[str, str], values: tuple[str, str], file: str, faults: set[str], seed: int
) -> None:
    """With the same value, and no other store: the store's column in the tile IR names it."""
    text = program(STORES.format(marks=marks, values=values), ["out"], shared=16).replace(
        ".visible", f'.file 1 "{file}"\n.visible'
    )
    assert kinds(launch(text, {"out": np.zeros(1, np.uint32)}, shared=16, threads=64, seed=seed)) == faults


def test_lines_that_the_caller_names_replicate() -> None:
    text = program("mov.u32 %r3, smem;\nst.shared.u32 [%r3], 7;\nst.shared.u32 [%r3+4], 7;", ["out"], shared=16)
    first = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("st.shared"))
    for named, faults in (((first,), 1), ((first, first + 1), 0), ((), 2)):
        report = launch(text, {"out": np.zeros(1, np.uint32)}, shared=16, replicating=named)
        assert len(report.faults) == faults


@pytest.mark.parametrize("name", ["decode_merge", "sample_token"])
def test_lowering_names_the_stores_whose_threads_hold_the_same_elements(name: str) -> None:
    kernel = shipped_run.compiled(name, 0, "sm_90a")
    arrays = shipped_launches.make_arrays(kernel.function, kernel.env)
    assert not shipped_run.emulate(kernel, arrays).faults
    unnamed = re.sub(r"(\.loc\s+1 \d+) 2", r"\1 1", kernel.ptx)
    assert kinds(shipped_run.emulate(kernel, arrays, text=unnamed)) == {"race-same-value"}


def test_lowering_names_no_other_stores() -> None:
    """Each thread of a product or of a reduction across threads has an address of its own."""
    for name in ("matmul", "rms_norm"):
        assert not re.search(r"\.loc\s+1 \d+ 2", shipped_run.compiled(name, 0, "sm_90a").ptx)
