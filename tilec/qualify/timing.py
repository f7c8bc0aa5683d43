"""How long a launch takes, compared with the least time for its bytes and operations.

Times are those of `tilec.tuning.clock`: a CUDA graph that cycles through argument sets larger than the L2 cache together,
filled with the same random contents as the checks. Bytes are divided by the rate of a copy that the driver makes in the same
process, MMA operations by the rate of the chip's clocks and multiprocessors where the architecture is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilec.artifact.records import Manifest
from tilec.qualify.arena import Arena, Staging
from tilec.qualify.side_file import Launch
from tilec.qualify.trial import arena_bytes, plan_of
from tilec.runtime import Device, DriverError, Kernel
from tilec.runtime.driver import L2_BYTES
from tilec.tuning.clock import timed
from tilec.tuning.records import Time
from tilec.tuning.roofline import PRODUCTS, Work

COPY_BYTES: Final = 256 << 20
"""Maximum bytes of the copy that measures the rate of memory."""
COPY_L2: Final = 4
"""Bytes of that copy, as a multiple of the L2 cache."""
TIMES_L2: Final = 2
"""Bytes of all argument sets together, as a multiple of the L2 cache."""
MOST_SETS: Final = 16
MOST_BYTES: Final = 4 << 30
CLOCK: Final = "CU_DEVICE_ATTRIBUTE_CLOCK_RATE"


class _Copy:
    """A copy on the device that is timed like a launch."""

    def __init__(self, device: Device, source: int, size: int) -> None:
        self.device, self.source, self.size = device, source, size

    def launch(self, stream: int) -> None:
        """Enqueue the copy."""
        self.device.driver.copy_on_device(self.source + self.size, self.source, self.size, stream)


def copy_rate(device: Device, staging: Staging) -> float:
    """Bytes per second that a copy on the device reads and writes. It copies random bytes: zeros would take less power."""
    from tilec.qualify.recipe import raw

    driver = device.driver
    size = min(COPY_BYTES, COPY_L2 * driver.device_attribute(device.ordinal, L2_BYTES))
    memory = driver.allocate(2 * size, 0)
    try:
        block = raw("copy", min(size, staging.size) // 8).view("uint8")
        for start in range(0, size, block.size):
            staging.upload(memory + start, block[: size - start])
        found = timed(driver, {"copy": [_Copy(device, memory, size)]}, lambda _: None)
    finally:
        driver.free(memory, 0)
    return 2 * size / found["copy"][0] * 1e6


def products_rate(device: Device) -> float | None:
    """MMA operations per second at the chip's clock; None where the architecture or the clock is unknown."""
    try:
        kilohertz = device.driver.device_attribute(device.ordinal, CLOCK)
    except (DriverError, KeyError):
        return None
    each = PRODUCTS.get(device.architecture)
    return each * device.multiprocessors * kilohertz * 1e3 if each and kilohertz else None


def floor(launch: Launch, copy: float, products: float | None) -> float:
    """Microseconds that a launch takes at least at these rates."""
    return Work(launch.bytes, launch.products if products else 0).floor(copy, products or 1.0)


def untimed(manifest: Manifest) -> str:
    """Why an artifact is not timed; empty if it is. Many launches in a row would carry integers out of their range."""
    checked = {check.tensor for check in manifest.value_checks}
    moving = [spec.name for spec in manifest.tensors if spec.access in ("inout", "atomic", "out") and spec.name in checked]
    return f"each launch changes `{moving[0]}`, whose values its contract bounds" if moving else ""


def times(kernels: Sequence[Kernel], staging: Staging, launches: Sequence[Launch]) -> list[Time]:
    """Microseconds of each kernel at its launch (median, 10th and 90th percentile), alternating between them."""
    alternatives: dict[str, list[object]] = {}
    arenas: list[Arena] = []
    driver = kernels[0].device.driver
    try:
        plans: dict[str, list[object]] = alternatives
        for number, (kernel, launch) in enumerate(zip(kernels, launches, strict=True)):
            size = max(1, arena_bytes(kernel.manifest, launch))
            l2 = driver.device_attribute(kernel.device.ordinal, L2_BYTES)
            room = max(1, min(driver.memory()[0] // 4, MOST_BYTES) // size)
            own = [
                Arena(driver, staging, kernel.manifest, launch.values, launch.kind)
                for _ in range(min(MOST_SETS, TIMES_L2 * l2 // size + 2, room))
            ]
            arenas += own
            plans[str(number)] = [plan_of(kernel, arena, launch) for arena in own]
            for arena in own:
                arena.reset()
        driver.synchronize(0)
        found = timed(driver, alternatives, lambda _: None)  # pyright: ignore[reportArgumentType]
        return [found[str(number)] for number in range(len(kernels))]
    finally:
        for arena in arenas:
            arena.close()
