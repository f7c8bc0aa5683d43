"""The shared-memory carveout that a kernel requests, computed from its schedule."""

from __future__ import annotations

from typing import Any

import pytest
from fake_driver import FakeDriver
from launch_contracts import SCHEDULE, T, loaded, manifest, tensor

from tilec.artifact.records import Manifest, Resources
from tilec.runtime.kernel import preferred_shared

HOPPER, GEFORCE = 232448, 101376
"""Maximum bytes of a block, for 228 and for 100 KiB per multiprocessor."""

CP_ASYNC, TMA = ({"stages": 2, "copy": copy, "mma": "mma_sync"} for copy in ("cp_async", "tma"))


def kernel_using(static: int, dynamic: int, **schedule: Any) -> Manifest:
    """A kernel whose blocks use the given bytes of shared memory."""
    resources = Resources(32, 0, 0, static, dynamic)
    return manifest((tensor("x", "out", "f32", T),), resources=resources, schedule=SCHEDULE | schedule)


@pytest.mark.parametrize(
    ("blocks", "static", "dynamic", "max_shared", "percent"),
    [
        (5, 1024, 0, HOPPER, 8),  # 10 KiB, in 16 of 228
        (4, 1024, 0, HOPPER, 4),  # 8 KiB exactly
        (4, 1028, 0, HOPPER, 8),
        (16, 0, 0, HOPPER, 8),  # the system's reservation per block counts too
        (2, 0, 66560, HOPPER, 58),  # 132 KiB exactly
        (2, 16, 66560, HOPPER, 72),
        (1, 4096, 131072, HOPPER, 72),
        (1, 0, HOPPER, HOPPER, 100),
        (3, 0, 101376, HOPPER, 100),  # more than available
        (1, 0, 70000, GEFORCE, 100),
        (2, 0, 20000, GEFORCE, 64),
    ],
)
def test_carveout_for_the_blocks_of_the_schedule(blocks: int, static: int, dynamic: int, max_shared: int, percent: int) -> None:
    for pipelines in ([], [CP_ASYNC]):
        assert preferred_shared(kernel_using(static, dynamic, blocks=blocks, pipelines=pipelines), max_shared) == percent


def test_the_driver_decides_without_a_block_count_or_with_tma() -> None:
    assert preferred_shared(kernel_using(0, 66560), HOPPER) is None
    assert preferred_shared(kernel_using(0, 66560, blocks=2, pipelines=[TMA]), HOPPER) is None


def test_loading_a_kernel_sets_its_carveout_once() -> None:
    driver = FakeDriver()
    kernel = loaded(kernel_using(0, 66560, blocks=2, pipelines=[CP_ASYNC]), driver)
    assert driver.preferred_shared == {kernel.function: 58}
    driver = FakeDriver()
    loaded(kernel_using(0, 66560), driver)
    assert not driver.preferred_shared
