"""One rank on a GPU: as `CudaBackend`, with its part of the weights, activations that the other ranks read, and a kernel at the
end of each step in which all meet.

Ranks are in step because all of them launch the same steps in the same order (`engine.ranks.gpus`): their GPUs wait for each
other in the collectives, and nothing on the host does. Each rank has the whole logits, with the same bits, and chooses the same
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine.backends.bundled_step import bundled_step
from engine.backends.cuda import CudaBackend
from engine.backends.device_buffers import DeviceBuffers, cache_bytes
from engine.backends.device_pages import DevicePages
from engine.backends.upload import WeightSource
from engine.graph.plan import ALIGNMENT, plan_memory
from engine.models.config import ModelConfig
from engine.ranks.launches import RankLaunches
from engine.ranks.memory import SharedMemory
from engine.ranks.step import RankStep, rank_step
from tilec.runtime import Bundle, Device, Plan
from tilec.step.graph import StepGraph
from tilec.step.step import OutputMode, Step


class RankCuda(CudaBackend):
    """A rank's backend. `shared` is the memory that ranks share."""

    kernels = RankLaunches
    defers = False  # ranks allocate the same in the same order
    launches: RankLaunches

    def __init__(self, bundle: Bundle, shared: SharedMemory, ranks: int, device: Device | None = None) -> None:
        super().__init__(bundle, device)
        self.rank, self.ranks, self._shared = shared.rank, ranks, shared
        self._last: tuple[Plan, ...] = ()

    def run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        """Run a prefill step of the backend's own sequence, on inputs by role."""
        self._check_open()
        self._run_chunk(inputs, tokens, past, output_mode)

    def allocate(self, graphs: Sequence[StepGraph], token: str) -> DeviceBuffers:
        if graphs[0].sequences == 1:
            return super().allocate(graphs, token)
        size = max(plan_memory(graph).size for graph in graphs)
        self.memory.require(cache_bytes(graphs) + size)
        return DeviceBuffers(self.driver, self.stream, graphs, token, (self.shared_arena(size), size))

    def shared_arena(self, size: int) -> int:
        """Memory for activations that all ranks have mapped when this returns, until they close."""
        return self._shared.allocate(size).pointers[self._shared.rank]

    def pages_that_fit(self, rows: int) -> int:
        """The pages of the largest pool of this rank next to what up to `rows` rows need, a number of rows of steps."""
        return self._pages_that_fit(rows)

    def _paged_device(self, step: Step, bucket: int) -> DevicePages:
        return RankPages(self, step, bucket)

    def _allocate_arena(self, size: int) -> int:
        signals = -(-size // ALIGNMENT) * ALIGNMENT
        arena = self.shared_arena(signals + self.launches.signal_bytes())
        self.launches.join(self._shared, arena + signals)
        self._last = (self.launches.meet(),)
        return arena

    def ending(self) -> tuple[Plan, ...]:
        return self._last

    def _bundled_step(self, weights: WeightSource, cache_format: str) -> RankStep:
        return bundled_rank_step(self.bundle, self.config, weights, self.max_seq_len, self.dtype, cache_format, self.ranks)

    def _release(self) -> None:
        """Free the rank's resources. No other rank may use its memory any more."""
        self._last = ()
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self._shared.close)
            releases.callback(super()._release)


class RankPages(DevicePages):
    """Steps over pages of a rank: a pool of its heads, and activations that the other ranks read."""

    expected = "sample", "argmax"  # what a start waits for

    def __init__(self, backend: RankCuda, step: Step, bucket: int) -> None:
        self._rank = backend
        super().__init__(backend, step, bucket)
        while self.prepare_chunk():  # the head process sends what to run, and nothing else
            pass

    def _allocate_arena(self, size: int) -> int:
        return self._rank.shared_arena(size)


def bundled_rank_step(
    bundle: Bundle, config: ModelConfig, weights: WeightSource, max_seq_len: int, dtype: str, cache_format: str, ranks: int
) -> RankStep:  # fmt: skip
    """A bundle's step for each of some ranks of a model; BundleRefused if the bundle is for another model or number of GPUs."""

    def make() -> RankStep:
        return rank_step(
            config, max_seq_len, dtype, ranks, weight_format=bundle.weight_format, cache_format=cache_format,
            declaration=bundle.declaration, measured=bundle.tuning.numbers,
        )  # fmt: skip

    return bundled_step(bundle, weights, cache_format, ranks, make)
