"""The oracle for kernels of several ranks: runs every rank, block and element of one concrete launch and reports faults.

Each rank runs as `tests.soundness.enumeration` runs one, on memory of its own and on the parts of all ranks, which are the same
memory in each of them. Further faults are about what ranks share:

| kind | meaning |
|---|---|
| deadlock | a block waits in a meet for ever |
| signal | a meet counts in words of another rank, or says that it is another one |
| stale | a read of another rank's part, which nothing orders after the launches there |
| ranks | two ranks access an element of a part in this launch, and one writes it |
| shared | a `Signal` tensor is read or written by anything but a meet |

`order`, a fault of one rank, is the contract's rule: no part is read before the meet, not even a rank's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.rank_soundness.meets import Block as RankBlock
from tests.rank_soundness.meets import Entry, Meets
from tests.soundness.dependence import _sources  # pyright: ignore[reportPrivateUsage]
from tests.soundness.enumeration import BlockIndex, Launch
from tests.soundness.memory import Element, Memory
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function, Op, Value

SHARED = (Access.PEER, Access.SIGNAL)


@dataclass(frozen=True, slots=True)
class RankFault:
    """A fault of a launch of several ranks."""

    kind: str
    text: str
    rank: int = -1

    def __str__(self) -> str:
        return f"{self.kind} in rank {self.rank}: {self.text}" if self.rank >= 0 else f"{self.kind}: {self.text}"


class RankMemory(Memory):
    """What a rank sees: its own contents, and those of parts, which are the same in every rank."""

    def __init__(self, function: Function, sizes: Mapping[str, int], seed: int, parts: Memory | None) -> None:
        super().__init__(function, sizes, seed)
        self._parts = parts
        self._of_ranks = {p.name for p in function.parameters if p.access in SHARED}

    def read(self, tensor: str, element: Element) -> int | float:
        if self._parts is not None and tensor in self._of_ranks:
            return self._parts.read(tensor, element)
        return super().read(tensor, element)

    def write(self, tensor: str, element: Element, value: int | float | None) -> None:
        if self._parts is not None and tensor in self._of_ranks:
            self._parts.write(tensor, element, value)
        else:
            super().write(tensor, element, value)


@dataclass(slots=True)
class Touched:
    """By rank that did it, the first element of each part (parameter) that a block read after so many meets, and every element
    that was read or written."""

    early: dict[tuple[int, int, str], Element] = field(default_factory=dict[tuple[int, int, str], Element])
    reads: dict[tuple[str, Element], set[int]] = field(default_factory=dict[tuple[str, Element], set[int]])
    writes: dict[tuple[str, Element], set[int]] = field(default_factory=dict[tuple[str, Element], set[int]])
    signals: set[str] = field(default_factory=set[str])


class RankLaunch(Launch):
    """One rank of a launch: also notes its meets and what it does to the parts of ranks."""

    def __init__(
        self, function: Function, sizes: Mapping[str, int], memory: Memory, rank: int, budget: int,
        only: Iterable[BlockIndex] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(function, sizes, memory, budget, only)
        self.rank = rank
        self.blocks: list[RankBlock] = []
        self.touched: list[Touched] = []
        numbers = {op.rank for op in function.body.walk() if isinstance(op, ops.Meet)}
        self.needed |= _sources(function, numbers)

    def _run(self, block: Block) -> None:
        if block is self.function.body:
            self.blocks.append(RankBlock(self.rank, self.block[0]))
            self.touched.append(Touched())
        start = 0
        for index, op in enumerate(block.ops):
            if isinstance(op, ops.Meet):
                super()._run(Block(block.arguments, block.ops[start:index]))
                start = index + 1
                self._meet(op)
        super()._run(Block(block.arguments, block.ops[start:]))

    def _meet(self, op: ops.Meet) -> None:
        self._step()
        names = [self.parameters[signal].name for signal in op.signals]
        signals = tuple((name.rpartition("_")[0], rank_of(name)) for name in names)
        self.blocks[-1].entries.append(Entry(op, self._scalar(op.rank), signals))
        self.met = True

    def _elements(
        self, op: Op, tensor: Value, index_operands: list[Value], tile: Value, allow_out_of_bounds: bool
    ) -> Iterator[Element | None]:
        parameter = self.parameters[tensor]
        for element in super()._elements(op, tensor, index_operands, tile, allow_out_of_bounds):
            if element is not None and parameter.access in SHARED and getattr(op, "unsafe", None) is None:
                self._note(op, parameter.name, parameter.access is Access.SIGNAL, element)
            yield element

    def _note(self, op: Op, name: str, is_signal: bool, element: Element) -> None:
        touched, meets = self.touched[-1], len(self.blocks[-1].entries)
        if is_signal:
            touched.signals.add(name)
        is_read = isinstance(op, ops.Load | ops.Gather)
        (touched.reads if is_read else touched.writes).setdefault((name, element), set()).add(self.rank)
        if is_read:
            touched.early.setdefault((rank_of(name), meets, name), element)


def rank_of(name: str) -> int:
    """The rank whose memory a tensor of several ranks is in: they are `NAME_0`, `NAME_1`, ..."""
    return int(name.rpartition("_")[2])


def run_ranks(
    function: Function,
    sizes: Sequence[Mapping[str, int]],
    seed: int,
    budget: int = 150_000,
    only: Sequence[BlockIndex] | None = None,
) -> list[RankFault]:
    """All faults of a launch whose ranks have these sizes and scalars; at most one of each kind and operation of a rank. As
    `Launch`, raises NoSuchLaunch, OverBudget and ZeroDivisionError."""
    r = random.Random(seed)
    parts = RankMemory(function, sizes[0], r.getrandbits(32), None)
    faults: list[RankFault] = []
    launches: list[RankLaunch] = []
    for rank, of_rank in enumerate(sizes):
        memory = RankMemory(function, of_rank, r.getrandbits(32), parts)
        launch = RankLaunch(function, of_rank, memory, rank, budget, only)
        faults += [RankFault(fault.kind, str(fault), rank) for fault in launch.run()]
        launches.append(launch)
    return faults + _between_ranks(launches, r)


def _between_ranks(launches: Sequence[RankLaunch], r: random.Random) -> list[RankFault]:
    blocks = [block for launch in launches for block in launch.blocks]
    names = sorted({name for block in blocks for entry in block.entries for name, _ in entry.signals})
    meets = Meets(blocks, {name: r.choice((0, 1, 2, 7, 2**31 - 1, 2**32 - 1)) for name in names})
    found = [RankFault(one.kind, f"{one.text}, block {one.block}", one.rank) for one in meets.run(r.getrandbits(32))]
    reads: dict[tuple[str, Element], set[int]] = {}
    writes: dict[tuple[str, Element], set[int]] = {}
    for launch in launches:
        for block, touched in zip(launch.blocks, launch.touched, strict=True):
            found += [RankFault("shared", f"{name} is touched", launch.rank) for name in sorted(touched.signals)]
            for (owner, meets_before, name), element in touched.early.items():
                known = block.known[meets_before] if meets_before < len(block.known) else frozenset(range(len(launches)))
                if owner not in known:
                    found.append(RankFault("stale", f"{name}{list(element)}, block {block.number}", launch.rank))
            for all_of, mine in ((reads, touched.reads), (writes, touched.writes)):
                for key, ranks in mine.items():
                    all_of.setdefault(key, set()).update(ranks)
    for (name, element), ranks in writes.items():
        if len(ranks | reads.get((name, element), set())) > 1:
            found.append(RankFault("ranks", f"{name}{list(element)} in ranks {sorted(ranks)}"))
            break
    first: dict[tuple[str, int], RankFault] = {}
    for fault in found:
        first.setdefault((fault.kind, fault.rank), fault)
    return list(first.values())
