"""Small changes to a correct schedule, of the kind that people make: most of them wrong, some harmless."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.soundness.description import (
    COMPARISONS,
    Assign,
    Branch,
    Description,
    Expr,
    LoadIndex,
    Loop,
    Move,
    Pick,
    Statement,
    walk,
)

Slot = tuple[Any, str | int, tuple[str, ...], str]
"""The location of an expression: container, attribute or position, variables in scope, and its role."""


def slots(kernel: Description) -> list[Slot]:
    """Every expression that may change."""
    expressions: list[Slot] = []
    blocks = tuple(f"b{axis}" for axis in range(len(kernel.grid)))
    expressions += [(kernel.grid, index, (), "grid") for index in range(len(kernel.grid))]
    for tensor in kernel.tensors:
        expressions += [(tensor.dims, index, (), "dim") for index in range(len(tensor.dims))]
    expressions += _body_slots(kernel.body, blocks)
    return expressions


def _body_slots(body: list[Statement], scope: tuple[str, ...]) -> Iterator[Slot]:
    for statement in body:
        match statement:
            case Assign():
                yield statement, "value", scope, "value"
                scope = (*scope, statement.name)
            case LoadIndex():
                for index in range(len(statement.index)):
                    yield statement.index, index, scope, "index"
                scope = (*scope, statement.name)
            case Move():
                for index in range(len(statement.index)):
                    yield statement.index, index, scope, "index"
            case Pick():
                for index in range(len(statement.index)):
                    yield statement.index, index, (*scope, "lane"), "index"
            case Loop():
                for name in ("lower", "upper", "step"):
                    yield statement, name, scope, name
                yield from _body_slots(statement.body, (*scope, statement.name))
            case Branch():
                yield statement, "condition", scope, "condition"
                yield from _body_slots(statement.then, scope)
                yield from _body_slots(statement.otherwise, scope)


def _get(slot: Slot) -> Expr:
    container, key = slot[0], slot[1]
    return container[key] if isinstance(key, int) else getattr(container, key)


def _set(slot: Slot, expr: Expr) -> None:
    container, key = slot[0], slot[1]
    if isinstance(key, int):
        container[key] = expr
    else:
        setattr(container, key, expr)


def _paths(expr: Expr, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield path
    if isinstance(expr, tuple):
        yield from _paths(expr[1], (*path, 1))
        yield from _paths(expr[2], (*path, 2))


def _replace(expr: Expr, path: tuple[int, ...], change: Callable[[Expr], Expr]) -> Expr:
    if not path:
        return change(expr)
    assert isinstance(expr, tuple)
    op, left, right = expr
    if path[0] == 1:
        return op, _replace(left, path[1:], change), right
    return op, left, _replace(right, path[1:], change)


def change_expression(r: random.Random, kernel: Description) -> None:
    """Replaces one subterm."""
    slot = r.choice(slots(kernel))
    expr = _get(slot)
    path = r.choice(list(_paths(expr)))
    scope = slot[2]
    _set(slot, _replace(expr, path, lambda old: _other(r, kernel, old, scope)))


def _other(r: random.Random, kernel: Description, old: Expr, scope: tuple[str, ...]) -> Expr:
    if isinstance(old, tuple) and old[0] in COMPARISONS:
        return r.choice(COMPARISONS), old[1], old[2]
    dims = kernel.dims()
    choices: list[Callable[[], Expr]] = [
        lambda: ("+", old, r.randint(1, 2)),
        lambda: ("-", old, 1),
        lambda: (r.choice(["*", "//", "%", ">>", "&", "|", "^"]), old, r.randint(1, 4)),
        lambda: (r.choice(["min", "max"]), old, r.choice([*dims, *scope, r.randint(0, 5)])),
    ]
    if isinstance(old, int):
        choices += [lambda: max(0, old + r.choice([-1, 1]))] * 4
    if isinstance(old, str):
        choices += [lambda: r.choice([*dims, *scope]) if dims or scope else old] * 4
    if isinstance(old, tuple):
        op, left, right = old
        choices += [lambda: left, lambda: right] + [
            lambda: (r.choice(["+", "-", "*", "//", "%", "min", "max"]), left, right)
        ] * 2
        choices += [lambda: (op, right, left)]
    return r.choice(choices)()


def change_shape(r: random.Random, kernel: Description) -> None:
    """Gives a tile another extent."""
    moves = [s for s in walk(kernel.body) if isinstance(s, Move)]
    if moves:
        move = r.choice(moves)
        axis = r.randrange(len(move.shape))
        move.shape[axis] = max(1, move.shape[axis] + r.choice([-1, 1]))


def flip_loose(r: random.Random, kernel: Description) -> None:
    """Drops or adds `pad` or `mask`."""
    accesses = [s for s in walk(kernel.body) if isinstance(s, Move | Pick)]
    if accesses:
        access = r.choice(accesses)
        access.loose = not access.loose


def flip_tiled(r: random.Random, kernel: Description) -> None:
    """Uses tile indices as element offsets or the other way round."""
    moves = [s for s in walk(kernel.body) if isinstance(s, Move)]
    if moves:
        move = r.choice(moves)
        move.tiled = not move.tiled


def swap_index(r: random.Random, kernel: Description) -> None:
    """Swaps two indices of one access."""
    accesses = [s for s in walk(kernel.body) if isinstance(s, Move | Pick) and len(s.index) > 1]
    if accesses:
        access = r.choice(accesses)
        a, b = r.sample(range(len(access.index)), 2)
        access.index[a], access.index[b] = access.index[b], access.index[a]


def swap_grid(r: random.Random, kernel: Description) -> None:
    """Swaps two grid extents."""
    if len(kernel.grid) > 1:
        a, b = r.sample(range(len(kernel.grid)), 2)
        kernel.grid[a], kernel.grid[b] = kernel.grid[b], kernel.grid[a]


def drop_fact(r: random.Random, kernel: Description) -> None:
    """Drops a precondition or value fact."""
    facts: list[Callable[[], None]] = [kernel.requires.clear] if kernel.requires else []
    for tensor in kernel.tensors:
        if tensor.distinct:
            facts.append(lambda t=tensor: setattr(t, "distinct", False))
        if tensor.ends:
            facts.append(lambda t=tensor: setattr(t, "ends", False))
        if tensor.sorted:
            facts.append(lambda t=tensor: (setattr(t, "sorted", False), setattr(t, "ends", False)))
        if tensor.low is not None:
            facts.append(lambda t=tensor: setattr(t, "low", None))
    if facts:
        r.choice(facts)()


def change_fact(r: random.Random, kernel: Description) -> None:
    """Moves a declared range of values by one."""
    tensors = [t for t in kernel.tensors if t.high is not None]
    if tensors:
        tensor = r.choice(tensors)
        assert tensor.high is not None
        tensor.high = (r.choice(["+", "-"]), tensor.high, 1)


def guard(r: random.Random, kernel: Description) -> None:
    """Runs a statement under a condition."""
    index = r.randrange(len(kernel.body))
    statement = kernel.body[index]
    if not isinstance(statement, Assign | LoadIndex):
        names = [f"b{axis}" for axis in range(len(kernel.grid))]
        left: Expr = r.choice([*names, ("%", r.choice(names), 2), ("+", r.choice(names), 1)])
        right: Expr = r.choice([0, 1, 2, *kernel.dims()])
        condition = (r.choice(COMPARISONS), left, right)
        kernel.body[index] = Branch(condition, [statement], [statement] if r.random() < 0.3 else [])


def repeat(r: random.Random, kernel: Description) -> None:
    """Runs a statement twice, or in a loop."""
    index = r.randrange(len(kernel.body))
    statement = kernel.body[index]
    if not isinstance(statement, Assign | LoadIndex):
        if r.random() < 0.5:
            kernel.body[index] = Loop("again", 0, r.choice([1, 2, *kernel.dims()]), 1, [statement])
        else:
            kernel.body.insert(index, statement)


def drop_statement(r: random.Random, kernel: Description) -> None:
    """Drops a load or store."""
    indices = [k for k, s in enumerate(kernel.body) if isinstance(s, Move | Pick)]
    if len(indices) > 1:
        del kernel.body[r.choice(indices)]


def fix_dim(r: random.Random, kernel: Description) -> None:
    """Makes a symbolic dim a constant."""
    free = [name for name in kernel.dims() if name not in kernel.constants]
    if free:
        kernel.constants[r.choice(free)] = r.randint(1, 6)


def free_dim(r: random.Random, kernel: Description) -> None:
    """Makes a constant dim symbolic."""
    if kernel.constants:
        kernel.constants.pop(r.choice(sorted(kernel.constants)))


def require(r: random.Random, kernel: Description) -> None:
    """Adds a precondition."""
    free = [name for name in kernel.dims() if name not in kernel.constants]
    if free:
        name = r.choice(free)
        choices: list[Expr] = [("==", ("%", name, r.randint(2, 3)), 0), ("<=", name, r.choice([4, 100])), (">=", name, 2)]
        kernel.requires.append(r.choice(choices))


MUTATIONS: tuple[tuple[int, Callable[[random.Random, Description], None]], ...] = (
    (10, change_expression), (2, change_shape), (3, flip_loose), (1, flip_tiled), (2, swap_index), (1, swap_grid),
    (2, drop_fact), (1, change_fact), (2, guard), (1, repeat), (1, drop_statement), (2, fix_dim), (1, free_dim), (1, require),
)  # fmt: skip


def mutate(r: random.Random, kernel: Description) -> str:
    """Changes the kernel in place; returns the name of the change."""
    (change,) = r.choices([m for _, m in MUTATIONS], [w for w, _ in MUTATIONS])
    change(r, kernel)
    return change.__name__
