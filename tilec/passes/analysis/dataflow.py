"""Generic forward fixpoint solver over the tile IR's structured control flow.

An analysis is a lattice (`bottom`, `join`, `widen`) and a transfer function; the solver walks regions in program order,
iterates loops until the facts at their heads are stable, and joins the values that the arms of an `if` yield. A fact at a join
point is exactly the join of the incoming facts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, If

Fact = TypeVar("Fact")

WIDEN_AFTER = 3  # passes over a loop before its facts are widened
ROUNDS = 12  # passes over a loop after which its facts become top


class Analysis(ABC, Generic[Fact]):
    """A lattice of facts about values, and how each operation maps facts of operands to facts of results."""

    @abstractmethod
    def parameter(self, value: Value) -> Fact:
        """The fact of a kernel parameter."""

    @abstractmethod
    def top(self, value: Value) -> Fact:
        """The weakest fact of a value of this type."""

    @abstractmethod
    def join(self, left: Fact, right: Fact) -> Fact:
        """The strongest fact that both imply."""

    @abstractmethod
    def widen(self, value: Value, before: Fact, after: Fact) -> Fact:
        """A fact that `before` and `after` both imply; repeated widening reaches a fixpoint in finitely many steps."""

    @abstractmethod
    def transfer(self, op: Op, operands: list[Fact]) -> list[Fact]:
        """Facts of the results of an operation without regions."""

    @abstractmethod
    def induction(self, op: For, lower: Fact, upper: Fact, step: Fact) -> Fact:
        """The fact of the loop variable inside the body."""


def solve(function: Function, analysis: Analysis[Fact]) -> dict[Value, Fact]:
    """Facts of every value of `function`."""
    facts: dict[Value, Fact] = {p.value: analysis.parameter(p.value) for p in function.parameters}
    _run(function.body, analysis, facts)
    return facts


def _run(block: Block, analysis: Analysis[Fact], facts: dict[Value, Fact]) -> list[Fact]:
    """Interpret a block; returns the facts of its yield's operands."""
    for op in block.ops[:-1] if block.ops and block.ops[-1].opcode == "yield" else block.ops:
        if isinstance(op, For):
            _loop(op, analysis, facts)
        elif isinstance(op, If):
            arms = [_run(region, analysis, facts) for region in op.regions]
            for position, result in enumerate(op.results):
                facts[result] = analysis.join(arms[0][position], arms[1][position])
        elif op.regions:  # roles: each region is executed once, by its own warps
            for region in op.regions:
                _run(region, analysis, facts)
        else:
            operands = [facts[value] for value in op.operands]
            facts.update(zip(op.results, analysis.transfer(op, operands), strict=True))
    return [facts[value] for value in block.ops[-1].operands] if block.ops and block.ops[-1].opcode == "yield" else []


def _loop(op: For, analysis: Analysis[Fact], facts: dict[Value, Fact]) -> None:
    (body,) = op.regions
    variable, *carried = body.arguments
    facts[variable] = analysis.induction(op, facts[op.lower], facts[op.upper], facts[op.step])
    entry = [facts[value] for value in op.initial]
    heads = list(entry)
    for count in range(ROUNDS):
        facts.update(zip(carried, heads, strict=True))
        ends = _run(body, analysis, facts)
        joined = [analysis.join(head, end) for head, end in zip(heads, ends, strict=True)]
        if joined == heads:
            break
        if count >= WIDEN_AFTER:
            joined = [analysis.widen(v, a, b) for v, a, b in zip(carried, heads, joined, strict=True)]
        heads = joined
    else:
        heads = [analysis.top(value) for value in carried]
        facts.update(zip(carried, heads, strict=True))
        _run(body, analysis, facts)
    facts.update(zip(op.results, heads, strict=True))
