"""Profile of a decode step: the GPU time of every kind of operation, and the bytes that it must move.

The launches of one kind (`layers.*.qkv_proj`: one per layer, each with its own weights) run in order in a CUDA graph of their
own, overlapped as in the step. So host time is excluded, and no weight is in the L2 cache from an earlier launch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.table import Table

from engine.backends import Backend
from engine.backends.cuda import CudaBackend
from engine.errors import UsageError
from engine.graph.traffic import traffic
from engine.sequence import Sequence
from engine.tools.head_read import HeadRead
from tilec.runtime import Plan
from tilec.step.graph import StepGraph

SECONDS_PER_KIND: Final = 0.02
"""Approximate run time per kind."""

MIN_LAUNCHES: Final = 64
"""Minimum launches in a graph."""

_LAYER: Final = re.compile(r"layers\.\d+\.")


@dataclass(frozen=True, slots=True)
class OpProfile:
    """A kind of operation: launches in a step; seconds of a launch and bytes that it reads and writes, as means."""

    name: str
    kernel: str
    launches: int
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """A decode step: its kinds in execution order, seconds of the whole step, and the measured read bandwidth in bytes/s."""

    operations: tuple[OpProfile, ...]
    seconds: float
    bandwidth: float
    filled: int

    def share_of_floor(self, operation: OpProfile) -> float:
        """The time for a launch's bytes at `bandwidth`, divided by its measured time."""
        return operation.bytes / self.bandwidth / operation.seconds


def kinds(graph: StepGraph) -> dict[str, list[int]]:
    """Positions of the operations of each kind; operations of a kind differ only in the layer."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(graph.ops):
        found[_LAYER.sub("layers.*.", op.name)].append(position)
    return found


def profile_decode(backend: Backend, sequence: Sequence) -> StepProfile:
    """Profile a decode step of a loaded model at the current length of a sequence; overwrites its last filled slot. UsageError
    for a backend other than CUDA's."""
    if not isinstance(backend, CudaBackend):
        raise UsageError("a profile is of the kernels on a GPU, and no GPU runs the model")
    filled = max(1, sequence.length)
    step = backend.captured_step(sequence.output_mode, backend.step.decode_variants(filled))
    # Without `advance`, which updates the inputs: every run must start from the same ones. First, so that launches of a kind
    # find what the step leaves them.
    without_advance = [plan for op, plan in zip(step.graph.ops, step.plans, strict=True) if op.kernel != "advance"]
    whole = _time(backend, without_advance, filled)
    operations: list[OpProfile] = []
    for name, positions in kinds(step.graph).items():
        ops, plans = [step.graph.ops[i] for i in positions], [step.plans[i] for i in positions]
        moved_bytes = sum(traffic(step.graph, op, filled, backend.contract(op)) for op in ops)
        operations.append(
            OpProfile(name, ops[0].kernel, len(ops), _time(backend, plans, filled) / len(ops), moved_bytes / len(ops))
        )
    return StepProfile(tuple(operations), whole, HeadRead(backend).sample(), filled)


def table(profile: StepProfile) -> Table:
    """The profile as a table for a terminal."""
    total = sum(item.launches * item.seconds for item in profile.operations)
    rendered = Table(box=box.SIMPLE, title=f"A decode step with {profile.filled} tokens in the cache")
    rendered.add_column("operation")
    rendered.add_column("kernel")
    for title in ("launches", "us each", "us", "share", "MB", "TB/s", "of floor"):
        rendered.add_column(title, justify="right")
    for item in profile.operations:
        seconds = item.launches * item.seconds
        rendered.add_row(
            item.name, item.kernel, str(item.launches), f"{1e6 * item.seconds:.2f}", f"{1e6 * seconds:.1f}",
            f"{seconds / total:.1%}", f"{item.launches * item.bytes / 1e6:.2f}",
            f"{item.bytes / item.seconds / 1e12:.2f}", f"{profile.share_of_floor(item):.0%}",
        )  # fmt: skip
    moved = sum(item.launches * item.bytes for item in profile.operations)
    rendered.add_section()
    rendered.add_row("sum", "", "", "", f"{1e6 * total:.1f}", "100.0%", f"{moved / 1e6:.2f}", f"{moved / total / 1e12:.2f}", "")
    rendered.add_row(
        "the step", "", "", "", f"{1e6 * profile.seconds:.1f}", f"{profile.seconds / total:.1%}", f"{moved / 1e6:.2f}",
        f"{moved / profile.seconds / 1e12:.2f}", f"{moved / profile.bandwidth / profile.seconds:.0%}",
    )  # fmt: skip
    rendered.caption = f"floor: the bytes at {profile.bandwidth / 1e12:.2f} TB/s, at which this GPU reads the LM head"
    return rendered


def _time(backend: CudaBackend, plans: list[Plan], filled: int) -> float:
    """Seconds of all launches together. A few launches are repeated in the graph, so that the graph launch itself is
    negligible."""
    copies = max(1, MIN_LAUNCHES // len(plans))
    first = backend.time_launches(plans * copies, 1, filled)
    repeats = max(3, min(1000, round(SECONDS_PER_KIND / max(first, 1e-6))))
    return backend.time_launches(plans * copies, repeats, filled) / copies
