"""The whole-graph verifier against a simulation of memory: random small steps with mistakes, tracked element by element."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

import pytest

from engine.graph.contract import Contract
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import GraphError, verify
from tests.campaign import first
from tilec.artifact.records import TensorSpec
from tilec.ir.expr import sym
from tilec.step.graph import Kind, Op, StepGraph, View

ALIGNED_ELEMENTS = 64
"""The arena's alignment in f32 elements."""


@dataclass
class SmallStep:
    """A random step of a few buffers and views of parts of them. The kernel `in.out.inout` has three parameters."""

    graph: StepGraph
    offsets: dict[str, int]

    @classmethod
    def random(cls, rng: random.Random) -> SmallStep:
        """A correct step: everything read was written before, and everything written is read by the end."""
        graph = StepGraph("small", 1)
        for i in range(4):
            graph.buffer(f"b{i}", "f32", (ALIGNED_ELEMENTS * rng.randint(1, 2),), Kind.ACTIVATION)
        graph.buffer("y", "f32", (4,), Kind.OUTPUT)
        complete: list[str] = []
        for i in range(rng.randint(2, 5)):
            source = rng.choice(complete) if complete else None
            out = rng.choice([name for name in graph.buffers if name not in (source, "y")])
            half = graph.buffers[out].shape[0] // 2
            reads = [graph.view(source)] if source else []
            update = out in complete and rng.random() < 0.5
            cls.add(graph, f"{i}", reads, [View(out, (half,))], [])  # one half, then the other
            cls.add(graph, f"{i}.again", reads, [View(out, (half,), half)], [])
            if update:
                cls.add(graph, f"{i}.update", reads, [], [graph.view(out)])
            cls.add(graph, f"{i}.served", [graph.view(out)], [graph.view("y")], [])
            complete = [*complete, out] if out not in complete else complete
        cls.add(graph, "last", [graph.view(name) for name in complete], [graph.view("y")], [])
        return cls(graph, dict(plan_memory(graph).offsets))

    @staticmethod
    def add(graph: StepGraph, name: str, reads: list[View], writes: list[View], updates: list[View]) -> None:
        kinds = ["in"] * len(reads) + ["out"] * len(writes) + ["inout"] * len(updates)
        views = {f"p{i}": view for i, view in enumerate([*reads, *writes, *updates])}
        graph.add(name, ".".join(kinds), {}, views)

    def change(self, rng: random.Random) -> None:
        """One small mistake; it may be harmless."""
        ops = self.graph.ops
        i = rng.randrange(len(ops) - 1)
        match rng.randrange(4):
            case 0:
                self.offsets[rng.choice(sorted(self.offsets))] = 4 * ALIGNED_ELEMENTS * rng.randint(0, 4)
            case 1:
                ops[i], ops[i + 1] = ops[i + 1], ops[i]
            case 2:
                del ops[i]
            case _:
                name = rng.choice(sorted(ops[i].tensors))
                view = ops[i].tensors[name]
                moved = replace(view, offset=view.offset + rng.choice((-32, -1, 1, 32)))
                ops[i] = replace(ops[i], tensors={**ops[i].tensors, name: moved})

    def memory(self) -> MemoryPlan:
        ends = [offset + self.graph.buffers[name].bytes for name, offset in self.offsets.items()]
        return MemoryPlan(self.offsets, max(ends, default=0))

    def is_consistent(self) -> bool:
        """Whether, element by element, every read finds the last value written under its buffer's name, and no launch writes
        memory that it also accesses through another view."""
        memory: dict[tuple[str, int], object] = {}
        expected: dict[tuple[str, int], object] = {}
        for position, op in enumerate(self.graph.ops):
            cells = {name: self.cells(view) for name, view in op.tensors.items()}
            accesses = dict(zip(op.tensors, op.kernel.split("."), strict=True))
            for name, access in accesses.items():
                if any(element >= self.graph.buffers[buffer].shape[0] or element < 0 for (buffer, element), _ in cells[name]):
                    return False
                if access != "out" and any(
                    tag not in expected or memory[address] != expected[tag] for tag, address in cells[name]
                ):
                    return False
            for name, access in accesses.items():
                own = {address for _, address in cells[name]}
                if access != "in" and any(own & {address for _, address in cells[other]} for other in cells if other != name):
                    return False
                for tag, address in cells[name] if access != "in" else ():
                    memory[address] = expected[tag] = (tag, position)
        return all(tag in expected for tag, _ in self.cells(self.graph.view("y")))

    def cells(self, view: View) -> list[tuple[tuple[str, int], tuple[str, int]]]:
        """Each element of a view, by its buffer and by its address."""
        offset = self.offsets.get(view.buffer)
        space, base = (view.buffer, 0) if view.buffer == "y" else ("arena", (offset or 0) // 4)
        return [((view.buffer, i), (space, base + i)) for i in range(view.offset, view.offset + view.elements)]


def small_contract(op: Op) -> Contract:
    kinds = enumerate(op.kernel.split("."))
    return Contract(tuple(TensorSpec(f"p{i}", kind, "f32", (sym(f"N{i}"),), None, 4) for i, kind in kinds), (), ())


@pytest.mark.parametrize(("begin", "end"), first(1, [(0, 400), (400, 1500)]))
def test_accepted_small_steps_have_every_element_right(begin: int, end: int) -> None:
    """Random steps, most with mistakes, on memory that tracks elements. Both outcomes must be common, or this would show
    nothing; most refused steps must be wrong, not merely beyond the verifier."""
    accepted = refused = wrong = 0
    for seed in range(begin, end):
        rng = random.Random(seed)
        small = SmallStep.random(rng)
        verify(small.graph, small.memory(), small_contract)
        assert small.is_consistent()
        before = list(small.graph.ops), dict(small.offsets)
        for _ in range(rng.randint(1, 2)):
            small.change(rng)
        if before == (small.graph.ops, small.offsets):
            continue
        consistent = small.is_consistent()
        try:
            verify(small.graph, small.memory(), small_contract)
        except GraphError as error:
            assert re.search("buffer `(b[0-3]|y)`", str(error))
            refused += 1
            wrong += not consistent
        else:
            assert consistent, seed
            accepted += 1
    assert accepted > (end - begin) // 10
    assert wrong > refused // 2


def test_one_unwritten_element_is_found() -> None:
    """Two launches that leave one element between them unwritten do not complete a buffer; without the gap they do."""
    for gap in (0, 1):
        graph = StepGraph("small", 1)
        graph.buffer("b0", "f32", (ALIGNED_ELEMENTS,), Kind.ACTIVATION)
        graph.buffer("y", "f32", (4,), Kind.OUTPUT)
        SmallStep.add(graph, "right", [], [View("b0", (32,), 32)], [])
        SmallStep.add(graph, "left", [], [View("b0", (32 - gap,))], [])
        SmallStep.add(graph, "last", [graph.view("b0")], [graph.view("y")], [])
        small = SmallStep(graph, dict(plan_memory(graph).offsets))
        assert small.is_consistent() is (gap == 0)
        if gap:
            with pytest.raises(GraphError, match="operation `last`: buffer `b0` is read before it is written"):
                verify(graph, small.memory(), small_contract)
        else:
            verify(graph, small.memory(), small_contract)
