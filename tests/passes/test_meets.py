"""Schedules of kernels that meet other ranks."""

from __future__ import annotations

import pytest

from tests import rank_launches
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.schedule import choose
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A


@pytest.mark.parametrize(
    ("wanted", "part"),
    [(Overrides(persistent=True), "persistent"), (Overrides(cluster=2), "cluster"), (Overrides(copy="tma"), "copy")],
)
def test_a_schedule_in_which_blocks_could_not_meet_is_refused(wanted: Overrides, part: str) -> None:
    with pytest.raises(CompileError) as refused:
        choose(rank_launches.load("all_reduce"), SM_90A, wanted)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E0809"
    assert f"no `{part}` for a kernel that meets other ranks" in diagnostic.message
