"""The bandwidth that this GPU reaches, taken in the same run: how fast the bundle's own kernel reads the largest weight.

A decode step reads weights and little else, so the roofline that it could reach is a read's, not a copy's. The LM head is the
largest weight; `matvec` reads it once a launch. A CUDA graph of many launches keeps the host's part below a thousandth.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from engine.backends.cuda import CudaBackend
from engine.bench.measure import HOST_CLOCK, Clock
from engine.config import ModelConfig
from engine.errors import BundleRefused
from engine.graph.step import ITEM_BYTES
from tilec.runtime import BundleError, Plan, TensorView
from tilec.runtime.tensors import contiguous_strides

SAMPLE_BYTES: Final = 64e9
"""Bytes that a sample reads: some 15 ms on an H200."""

MOST_LAUNCHES: Final = 256
L2_CACHE: Final = "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"
FILLER: Final = 0x3C
"""Each byte of the vector that the weight is multiplied by: 0.0115 in bf16, 1.06 in f16, not zero."""


class HeadRead:
    """Reads the LM head of a loaded model over and over. Close it before the backend."""

    def __init__(self, backend: CudaBackend, config: ModelConfig, dtype: str) -> None:
        self.driver, self.stream = backend.driver, backend.stream
        weight = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        try:
            found = backend.bundle.find("matvec", E=dtype, B=1, K=config.hidden_size)
            self.kernel = backend.bundle.load(found, backend.device)
        except BundleError as error:
            raise BundleRefused(error.message, fix="pack the bundle of this model") from None
        item, outputs, inputs = ITEM_BYTES[dtype], config.vocab_size, config.hidden_size
        self.bytes = item * outputs * inputs
        row = backend.memory.allocate(item * inputs)
        self.driver.fill(row, FILLER, item * inputs, self.stream)
        tensors = {
            "x": (row, (1, inputs)),
            "w": (backend.memory.pointers[weight], (outputs, inputs)),
            "out": (backend.memory.allocate(item * outputs), (1, outputs)),
        }
        self._plan = self.kernel.plan(
            {name: TensorView(at, dtype, shape, contiguous_strides(shape)) for name, (at, shape) in tensors.items()}
        )
        self.launches = min(MOST_LAUNCHES, ceil(SAMPLE_BYTES / self.bytes))
        cache = backend.device.driver.device_attribute(backend.device.ordinal, L2_CACHE)
        self.what = (
            f"bytes of `{weight}` ({self.bytes}) read per second by `{found.name}`, a CUDA graph of {self.launches} launches "
            f"by the host's clock; the L2 cache of {cache} bytes may have kept {100 * min(1, cache / self.bytes):.1f} % at most"
        )
        self._graph = self._captured(self._plan, found.manifest.dependent_launch)

    def _captured(self, plan: Plan, overlap: bool) -> object:
        self.driver.begin_capture(self.stream)
        try:
            for _ in range(self.launches):
                plan.launch(self.stream, overlap=overlap)
        finally:
            graph = self.driver.end_capture(self.stream)
        return graph

    def sample(self, clock: Clock = HOST_CLOCK) -> float:
        """Bytes per second of one graph."""
        self.driver.synchronize(self.stream)
        began = clock()
        self.driver.launch_graph(self._graph, self.stream)
        self.driver.synchronize(self.stream)
        return self.launches * self.bytes / (clock() - began)

    def close(self) -> None:
        """Release the graph and the kernel; the memory is the backend's."""
        self.driver.destroy_graph(self._graph)
        self.kernel.close()
