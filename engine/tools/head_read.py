"""The read bandwidth of this GPU, measured in the same run: how fast the bundle's own kernel reads the largest weight.

A decode step mostly reads weights, so its roofline is a read, not a copy. The LM head is the largest weight; one launch of
`matvec` reads it once. A CUDA graph of many launches keeps the host's share of the time below a thousandth.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from engine.backends.cuda import CudaBackend
from engine.graph.traffic import traffic

SAMPLE_BYTES: Final = 64e9
"""Bytes read per sample: some 15 ms on an H200."""

MAX_LAUNCHES: Final = 256
L2_CACHE: Final = "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"


class HeadRead:
    """Reads the LM head of a loaded model repeatedly."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        step = backend.captured_step("logits", backend.step.decode_variants(1))
        op, self._plan = next((op, plan) for op, plan in zip(step.graph.ops, step.plans, strict=True) if op.name == "lm_head")
        self.bytes = traffic(step.graph, op, 1, backend.contract(op))
        self.launches = min(MAX_LAUNCHES, ceil(SAMPLE_BYTES / self.bytes))
        cache = backend.driver.device_attribute(backend.device.ordinal, L2_CACHE)
        self.what = (
            f"bytes that `{self._plan.kernel.manifest.kernel}` of the LM head reads and writes ({self.bytes}) per second, a "
            f"CUDA graph of {self.launches} launches by the host's clock; the L2 cache of {cache} bytes may have kept "
            f"{100 * min(1, cache / self.bytes):.1f} % at most"
        )

    def sample(self) -> float:
        """Bytes per second in one graph launch."""
        return self.launches * self.bytes / self._backend.time_launches([self._plan] * self.launches, 1, 1)
