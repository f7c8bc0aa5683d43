"""Launches of a rank: those of collectives get the memory of all ranks.

A kernel of a collective has more parameters than the operation: for `x` a tensor of each rank, `x_0`, `x_1`, ..., whose access
is `peer`; the signals of each rank, `signals_0`, ..., whose access is `signal`; and the number of this rank as a scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

from engine.backends.launches import Launches
from engine.errors import DeviceError, EngineError
from engine.graph.contract import Contract
from engine.ranks.memory import SharedMemory
from tilec.artifact.records import Manifest, TensorSpec
from tilec.runtime import Bundle, BundledKernel, Device, Plan, TensorView
from tilec.runtime.tensors import contiguous_strides
from tilec.step.collectives import COLLECTIVES, MEET, READ_BY_PEERS
from tilec.step.graph import ITEM_BYTES, Op, StepGraph

PEER: Final = "peer"
SIGNAL: Final = "signal"
"""Accesses of tensors that several ranks have."""
RANK: Final = "rank"
"""The scalar with the number of a rank."""
SIGNAL_BYTES: Final = ITEM_BYTES["u32"]


def rank_contract(op: Op, manifest: Manifest) -> Contract | Manifest:
    """The contract of an operation's kernel for the verifier of steps: of a collective, what it does with the rank's own
    tensors."""
    if op.kernel not in COLLECTIVES:
        return manifest
    tensors: list[TensorSpec] = []
    for spec in manifest.tensors:
        if spec.access == PEER and not any(one.name == READ_BY_PEERS for one in tensors):
            tensors.append(replace(spec, name=READ_BY_PEERS, access="in"))
        elif spec.access not in (PEER, SIGNAL):
            tensors.append(spec)
    checks = tuple(check for check in manifest.launch_checks if RANK not in check.condition.symbols())
    scalars = tuple(spec for spec in manifest.scalars if spec.name != RANK)
    return Contract(tuple(tensors), scalars, manifest.value_checks, checks, manifest.promises)


def of_signals(kernel: BundledKernel) -> bool:
    """Whether a kernel waits for other ranks."""
    return any(spec.access == SIGNAL for spec in kernel.manifest.tensors)


class RankContracts:
    """`rank_contract` of each artifact, made once."""

    def __init__(self) -> None:
        self._known: dict[str, Contract | Manifest] = {}

    def of(self, op: Op, bundled: BundledKernel) -> Contract | Manifest:
        """The contract of an operation whose kernel was found."""
        if bundled.name not in self._known:
            self._known[bundled.name] = rank_contract(op, bundled.manifest)
        return self._known[bundled.name]


class RankLaunches(Launches):
    """As `Launches`, of one of several ranks. `join` gives it the memory that they share."""

    def __init__(self, bundle: Bundle, device: Device) -> None:
        super().__init__(bundle, device)
        self._contracts = RankContracts()
        self._shared: SharedMemory | None = None
        self._signals = 0

    def join(self, shared: SharedMemory, signals: int) -> None:
        """Use the memory of all ranks; `signals` is the address of this rank's own, of `signal_bytes`. DeviceError if the
        device has too few multiprocessors to run all blocks of a collective at once, which wait for those of other ranks."""
        blocks = max((int(one.manifest.constants["BLOCKS"]) for one in self.bundle.kernels if of_signals(one)), default=0)
        if blocks > self.device.multiprocessors:
            what = f"{self.device.name} has {self.device.multiprocessors} multiprocessors, and ranks meet in {blocks} blocks"
            raise DeviceError(what, fix="take one GPU, or a bundle with fewer `BLOCKS`")
        self._shared, self._signals = shared, signals

    def contract(self, op: Op, bundled: BundledKernel) -> Contract | Manifest:
        return self._contracts.of(op, bundled)

    def signal_bytes(self) -> int:
        """Bytes of the signals of a rank: the most that a kernel of the bundle takes."""
        sizes = [
            SIGNAL_BYTES * prod(dim.evaluate({}) for dim in spec.dims)
            for kernel in self.bundle.kernels
            for spec in kernel.manifest.tensors
            if spec.access == SIGNAL
        ]
        return max(sizes, default=0)

    def meet(self) -> Plan:
        """The launch in which ranks wait for each other at the end of a step."""
        op = Op("meet", MEET, {"RANKS": len(self._regions.regions[0].pointers)}, {})
        kernel = self._kernel(op, self.find(op, op.constants))
        return kernel.plan(self._signals_of(kernel.manifest) | {RANK: self._regions.rank})

    @property
    def _regions(self) -> SharedMemory:
        if self._shared is None:
            raise EngineError("a rank has no memory of the others yet")
        return self._shared

    def _numbers(self, op: Op, manifest: Manifest) -> tuple[dict[str, tuple[int, ...]], Mapping[str, int | float]]:
        shapes, scalars = super()._numbers(op, manifest)
        if op.kernel not in COLLECTIVES:
            return shapes, scalars
        own = shapes.pop(READ_BY_PEERS)
        shapes |= {spec.name: own for spec in manifest.tensors if spec.access == PEER}
        shapes |= {name: view.shape for name, view in self._signals_of(manifest).items()}
        return shapes, {**scalars, RANK: self._regions.rank}

    def _arguments(self, graph: StepGraph, op: Op, pointers: Mapping[str, int], manifest: Manifest) -> dict[str, Any]:
        arguments = super()._arguments(graph, op, pointers, manifest)
        if op.kernel not in COLLECTIVES:
            return arguments
        own: TensorView = arguments.pop(READ_BY_PEERS)
        of_ranks = self._regions.of_ranks(own.pointer, prod(own.shape) * ITEM_BYTES[own.dtype])
        names = [spec.name for spec in manifest.tensors if spec.access == PEER]
        if len(names) != len(of_ranks):
            raise DeviceError(f"operation `{op.name}`: `{op.kernel}` is of {len(names)} ranks, and there are {len(of_ranks)}")
        for name, pointer in zip(names, of_ranks, strict=True):
            arguments[name] = TensorView(pointer, own.dtype, own.shape, own.strides)
        return arguments | self._signals_of(manifest) | {RANK: self._regions.rank}

    def _signals_of(self, manifest: Manifest) -> dict[str, TensorView]:
        """The signals of every rank, by parameter."""
        specs = [spec for spec in manifest.tensors if spec.access == SIGNAL]
        found: dict[str, TensorView] = {}
        for rank, spec in enumerate(specs):
            shape = tuple(dim.evaluate({}) for dim in spec.dims)
            pointer = self._regions.of_ranks(self._signals, SIGNAL_BYTES * prod(shape))[rank]
            found[spec.name] = TensorView(pointer, spec.dtype, shape, contiguous_strides(shape))
        return found
