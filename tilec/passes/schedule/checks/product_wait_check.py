"""Checks that nothing uses what an asynchronous product computes before a wait that covers it (PTX ISA, `wgmma.wait_group`).

In: a prepared function. Out: nothing, or a VerifyError that names the operation. Products of a role are complete in the order
in which they start, and a wait for at most n unfinished ones covers all but the newest n. Rules:

- Until then, only another product may take a result as its sums, only a wait of it may pass it on, and only loops and branches
  may carry it.
- No product is unfinished where a loop or branch begins that starts products or waits for them, where such a branch ends, or at
  the end of a role or of the kernel: a loop may run no iteration, and a branch not at all.

A loop is run for as many iterations as a product's result can take through its carried values, and two more. A mistake in a
later iteration is one there too: numbers of products only grow by those of an iteration, and each wait is repeated.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import For, If, Yield
from tilec.ir.ops.staging_ops import GroupProduct, WaitMma
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.ops.tmem_ops import ThreadProduct
from tilec.passes.schedule.checks.op_location import at


def check(function: Function) -> None:
    """Raise VerifyError at the first broken rule. Kernels without such products pass."""
    if any(_starts(op) for op in function.body.walk()):
        run = _Run()
        run.block(function.body)
        run.all_complete("the end of the kernel")


class _Run:
    """A run of one role. `products`: the number of the product that computes a value; `started`, `complete`: how many there
    are. A role has its own."""

    def __init__(self) -> None:
        self.products: dict[Value, int] = {}
        self.started = self.complete = 0

    def all_complete(self, location: str) -> None:
        if self.complete < self.started:
            raise VerifyError(f"{location}: {self.started - self.complete} products are unfinished")

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op:
            case For():
                self.loop(op)
            case If():
                self.branch(op)
            case Roles():
                self.all_complete(at(op))
                for region in op.regions:
                    self.block(region)
                    self.all_complete(f"{at(op)}, the end of a role")
            case Yield():
                pass
            case WaitMma():
                self.complete = max(self.complete, self.started - op.pending)
                self.used(op, op.operands[1:])
                self.bind([op.result], [op.operands[0]])
            case GroupProduct() if _starts(op):
                self.used(op, op.operands[:-1])
                self.products[op.result] = self.started
                self.started += 1
            case _:
                self.used(op, op.operands)

    def used(self, op: Op, values: list[Value]) -> None:
        for value in values:
            if self.products.get(value, -1) >= self.complete:
                raise VerifyError(f"{at(op)} uses what a product has not computed yet")

    def bind(self, names: list[Value], values: list[Value]) -> None:
        """Each name stands for the product whose result the value is, or for none."""
        found = [self.products.get(value, -1) for value in values]
        for name, product in zip(names, found, strict=True):
            self.products[name] = product

    def loop(self, op: For) -> None:
        (body,) = op.regions
        self.used(op, op.operands[:3])
        if _has_products(op):
            self.all_complete(at(op))
        carried = op.initial
        for _ in range(len(carried) + 2):
            self.bind(body.arguments[1:], carried)
            self.block(body)
            carried = body.ops[-1].operands
        self.bind(op.results, carried)

    def branch(self, op: If) -> None:
        has_products = _has_products(op)
        self.used(op, op.operands)
        if has_products:
            self.all_complete(at(op))
        found = [-1] * len(op.results)
        for region in op.regions:
            self.block(region)
            yielded = region.ops[-1].operands if op.results else []
            found = [max(number, self.products.get(value, -1)) for number, value in zip(found, yielded, strict=True)]
            if has_products:
                self.all_complete(f"{at(op)}, the end of a region")
        self.products |= dict(zip(op.results, found, strict=True))


def _starts(op: Op) -> bool:
    """Whether it starts a product into registers."""
    return isinstance(op, GroupProduct) and not isinstance(op, ThreadProduct)


def _has_products(op: Op) -> bool:
    """Whether a loop or branch starts products or waits for them."""
    return any(_starts(inner) or isinstance(inner, WaitMma) for region in op.regions for inner in region.walk())
