"""The verifier of a step that ranks share: for all ranks, every buffer is what its reader takes it for, and all ranks meet.

In: the graph of each rank, and the graph of the same launches with undivided numbers. An axis along which a rank has a part of
the extent is a slice; every other one is whole. So shapes say what is sliced, and what is a part of a sum follows from the
launches in order, by what each kernel makes of its inputs (`engine.ranks.signatures`).

| rule     | statement                                                                                                     |
|----------|---------------------------------------------------------------------------------------------------------------|
| extents  | every extent of a rank is that of the whole, or the whole divided by the number of ranks                       |
| slices   | a kernel reads a slice only along an axis that its signature lets be sliced, all its tensors along the same;   |
|          | and every view of a buffer is sliced where the buffer is                                                       |
| sums     | a part of a sum is read by collectives only, and they read nothing else but slices that they gather, or by     |
|          | kernels that make a part of it; parts next to each other are read by kernels that add them                     |
| order    | all ranks have the same collectives, in the same order, with the same shapes, and kernels of the same names    |

A GraphError names rank, operation and buffer. Weights are another matter: `engine.ranks.shards` checks that those of all ranks
are each weight once. `verify_lasting` checks a plan of the arena: nobody writes what others may still read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Final

from engine.graph.integers import GraphError
from engine.graph.plan import MemoryPlan
from engine.ranks.signatures import SUMMANDS, SUMMED, WHOLE, Signature, signature
from tilec.step.collectives import COLLECTIVES, GATHER, READ_BY_PEERS
from tilec.step.graph import Kind, Op, StepGraph, View


@dataclass(frozen=True, slots=True)
class State:
    """What a buffer holds in a rank: `part` of a sum over ranks, or all of it. `summands`: its first axis is parts of a sum."""

    part: bool = False
    summands: bool = False


COMPLETE: Final = State()


def verify_ranks(graphs: Sequence[StepGraph], whole: StepGraph) -> None:
    """Check the graphs of all ranks, in order; GraphError at the first broken rule."""
    _order(graphs)
    checked: set[int] = set()
    for rank, graph in enumerate(graphs):
        if id(graph) not in checked:
            checked.add(id(graph))
            _Rank(rank, graph, whole, len(graphs)).check()


def verify_lasting(graph: StepGraph, memory: MemoryPlan) -> None:
    """GraphError if an operation touches the bytes of what other ranks may still read: between a collective and the next one,
    or the end of the step (`engine.ranks.lifetimes`)."""
    positions = [position for position, op in enumerate(graph.ops) if op.kernel in COLLECTIVES]
    for position, following in zip(positions, [*positions[1:], len(graph.ops)], strict=False):
        read = graph.ops[position].tensors[READ_BY_PEERS].buffer
        for op in graph.ops[position + 1 : following] if read in memory.offsets else ():
            for view in op.tensors.values():
                if view.buffer == read or _overlap(graph, memory, read, view.buffer):
                    what = f"operation `{op.name}`: buffer `{view.buffer}` lies where other ranks may still read `{read}`"
                    raise GraphError(what, where=f"step `{graph.name}`")


def _overlap(graph: StepGraph, memory: MemoryPlan, first: str, second: str) -> bool:
    a, b = memory.offsets.get(first), memory.offsets.get(second)
    if a is None or b is None:
        return False
    return a < b + graph.buffers[second].bytes and b < a + graph.buffers[first].bytes


def _order(graphs: Sequence[StepGraph]) -> None:
    """Check the rule `order`."""
    first, *others = ([op for op in graph.ops if op.kernel in COLLECTIVES] for graph in graphs)
    for rank, ops in enumerate(others, 1):
        for mine, theirs in zip_longest(first, ops):
            op = mine or theirs
            if op is not None and (mine is None or theirs is None):
                absent, present = (0, rank) if mine is None else (rank, 0)
                what = f"rank {present} meets in `{op.kernel}` of `{op.name}`, and rank {absent} never does"
                raise GraphError(what, where=f"step `{graphs[0].name}`")
            if mine is not None and theirs is not None and _shown(mine) != _shown(theirs):
                what = f"rank 0 meets in {_shown(mine)}, and rank {rank} in {_shown(theirs)}"
                raise GraphError(what, where=f"step `{graphs[0].name}`")
    for rank, graph in enumerate(graphs):
        for mine, theirs in zip_longest(graphs[0].ops, graph.ops):
            if _called(mine) != _called(theirs):
                what = f"rank 0 runs {_called(mine)}, and rank {rank} {_called(theirs)}"
                raise GraphError(what, where=f"step `{graph.name}`")


def _called(op: Op | None) -> str:
    return "nothing more" if op is None else f"`{op.kernel}` as `{op.name}`"


def _shown(op: Op) -> str:
    shapes = ", ".join(f"{name} {list(view.shape)}" for name, view in op.tensors.items())
    constants = ", ".join(f"{name}={value}" for name, value in sorted(op.constants.items()))
    return f"`{op.kernel}` of `{op.name}` ({constants}; {shapes})"


class _Rank:
    """What is known about the buffers of one rank after each operation."""

    def __init__(self, rank: int, graph: StepGraph, whole: StepGraph, ranks: int) -> None:
        self.rank, self.graph, self.whole, self.ranks = rank, graph, whole, ranks
        self.states: dict[str, State] = {}
        self.weights = {
            name for name, buffer in graph.buffers.items() if buffer.kind is Kind.WEIGHT
        }  # and what is made of them

    def check(self) -> None:
        if len(self.graph.ops) != len(self.whole.ops):
            raise GraphError(
                f"rank {self.rank} has {len(self.graph.ops)} operations, and the whole step {len(self.whole.ops)}",
                where=f"step `{self.graph.name}`",
            )
        for op, of_whole in zip(self.graph.ops, self.whole.ops, strict=True):
            if (op.name, op.kernel) != (of_whole.name, of_whole.kernel):
                raise self._refuse(op, "", f"is `{op.kernel}`, and in the whole step `{of_whole.kernel}` of `{of_whole.name}`")
            slices = {name: self._slices(op, name, view, of_whole.tensors[name]) for name, view in op.tensors.items()}
            if op.kernel in COLLECTIVES:
                self._collective(op, slices)
            else:
                self._kernel(op, signature(op.kernel), slices)
        for name, buffer in self.graph.buffers.items():
            if buffer.kind is Kind.OUTPUT and (self._state(name) != COMPLETE or self.whole.buffers[name].shape != buffer.shape):
                raise GraphError(f"buffer `{name}` is an output that is not whole in rank {self.rank}")

    def _state(self, buffer: str) -> State:
        return self.states.get(buffer, COMPLETE)

    def _slices(self, op: Op, name: str, view: View, whole: View) -> tuple[bool, ...]:
        """Which axes of a view are slices; checks the rule `extents`, and that the view is sliced where its buffer is."""
        if len(view.shape) != len(whole.shape):
            raise self._refuse(
                op, view.buffer, f"has rank {len(view.shape)} as `{name}`, and {len(whole.shape)} in the whole step"
            )
        found = self._divided(op, view.buffer, view.shape, whole.shape)
        buffer, of_whole = self.graph.buffers[view.buffer], self.whole.buffers[view.buffer]
        own = self._divided(op, view.buffer, buffer.shape, of_whole.shape)
        # A table of weights is a slice of each of them, one after the other, so other axes show what is sliced.
        if view.buffer not in self.weights and _before(found, whole.shape) != _before(own, of_whole.shape):
            raise self._refuse(op, view.buffer, f"is {_axes(own)}, and as `{name}` {_axes(found)}")
        return found

    def _divided(self, op: Op, buffer: str, shape: Sequence[int], whole: Sequence[int]) -> tuple[bool, ...]:
        for axis, (extent, full) in enumerate(zip(shape, whole, strict=True)):
            if extent not in (full, full / self.ranks):
                raise self._refuse(
                    op, buffer, f"has {extent} of {full} on axis {axis}, and {self.ranks} ranks have equal parts"
                )
        return tuple(extent != full for extent, full in zip(shape, whole, strict=True))

    def _kernel(self, op: Op, known: Signature | None, slices: Mapping[str, tuple[bool, ...]]) -> None:
        """Check the rules `slices` and `sums` for a kernel."""
        letters: dict[str, tuple[bool, str]] = {}
        part = False
        for name, view in op.tensors.items():
            axes = (WHOLE,) * len(view.shape) if known is None else known.axes.get(name)
            if axes is None or len(axes) != len(view.shape):
                raise self._refuse(op, view.buffer, f"is `{name}`, whose axes no signature of `{op.kernel}` gives")
            state = self._state(view.buffer)
            if state.part and (known is None or name not in known.added):
                raise self._refuse(op, view.buffer, f"is a part of a sum, and `{op.kernel}` takes `{name}` as whole")
            part = part or state.part
            if state.summands and axes[0] != SUMMANDS:
                raise self._refuse(op, view.buffer, f"is parts of a sum side by side, and `{op.kernel}` does not add them")
            for axis, (letter, sliced) in enumerate(zip(axes, slices[name], strict=True)):
                if letter in (WHOLE, SUMMANDS):
                    if sliced:
                        raise self._refuse(
                            op, view.buffer, f"is a slice along axis {axis}, and `{op.kernel}` takes `{name}` as whole"
                        )
                    continue
                first, other = letters.setdefault(letter, (sliced, name))
                if first != sliced:
                    what = f"is {'a slice' if sliced else 'whole'} along axis {axis} of `{name}`, and `{other}` is not"
                    raise self._refuse(op, view.buffer, what)
                part = part or (sliced and letter.startswith(SUMMED))
        if known is not None:
            for name in known.written & op.tensors.keys():
                self.states[op.tensors[name].buffer] = State(part, known.axes[name][0] == SUMMANDS)
            if all(view.buffer in self.weights for name, view in op.tensors.items() if name not in known.written):
                self.weights |= {op.tensors[name].buffer for name in known.written}

    def _collective(self, op: Op, slices: Mapping[str, tuple[bool, ...]]) -> None:
        """Check the rules `slices` and `sums` for a collective."""
        read = op.tensors[READ_BY_PEERS].buffer
        state = self._state(read)
        for name, view in op.tensors.items():
            if name != READ_BY_PEERS and self._state(view.buffer).part:
                raise self._refuse(op, view.buffer, f"is a part of a sum, and `{op.kernel}` takes `{name}` as whole")
            if any(slices[name]) and (op.kernel != GATHER or name != READ_BY_PEERS):
                raise self._refuse(op, view.buffer, f"is {_axes(slices[name])}, and `{op.kernel}` takes `{name}` as whole")
        along_first = slices[READ_BY_PEERS][0] and not any(slices[READ_BY_PEERS][1:])
        if op.kernel != GATHER:
            if not state.part:
                raise self._refuse(op, read, f"is whole, and `{op.kernel}` would add it {self.ranks} times")
        elif not (along_first and not state.part) and not (state.part and state.summands and not any(slices[READ_BY_PEERS])):
            what = f"is {_axes(slices[READ_BY_PEERS])}{', a part of a sum' if state.part else ''}"
            raise self._refuse(op, read, f"{what}, and `{op.kernel}` puts parts side by side along the first axis")
        for name, view in op.tensors.items():
            if name == "out":
                self.states[view.buffer] = State(False, state.summands)

    def _refuse(self, op: Op, buffer: str, what: str) -> GraphError:
        named = f"buffer `{buffer}` " if buffer else ""
        return GraphError(f"rank {self.rank}: operation `{op.name}`: {named}{what}", where=f"step `{self.graph.name}`")


def _before(slices: Sequence[bool], whole: Sequence[int]) -> list[int]:
    """For each sliced axis, the elements of the whole before it: what stays the same in another shape of the same bytes."""
    return [prod(whole[:axis]) for axis, sliced in enumerate(slices) if sliced]


def _axes(slices: Sequence[bool]) -> str:
    axes = [str(axis) for axis, sliced in enumerate(slices) if sliced]
    return f"a slice along axis {' and '.join(axes)}" if axes else "whole"
