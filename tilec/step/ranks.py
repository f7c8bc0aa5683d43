"""The step that several ranks share: takes a declaration with `shards` and `sums`, returns that of each rank.

A rank is a GPU of a machine, with a process of its own. All run the same text on their own parts of the weights, and meet in
collectives: operations of the step that read a buffer of every rank.

    shards = {"model.layers.*.self_attn.o_proj.weight": columns(num_attention_heads), ...}
    sums = {"matmul": {"part": like(out), "product": matmul(E=E, a=a, b=b, out=part), "sum": all_reduce(E=E, x=part, out=out)}}

`rows(NUMBER, ...)` and `columns(NUMBER, ...)` give a rank an equal part of a weight's rows (outputs) or columns (inputs). The
numbers that they name are divided by the number of ranks, and with them the extents of all weights and buffers that they
determine. Of a stacked weight, such as that of experts, a rank has a part of each item. `ranks` is a number of every step, 1 in
that of one GPU.

A launch that takes a weight of which a rank has columns is replaced as `sums` says for its kernel: by launches whose arguments
are the parameters, constants and scalars of that launch, and new buffers: `like(out)` has the dtype and shape of a
parameter's buffer, `share_of(parts)` the same with the first axis divided by `ranks`. With `"matmul": part(out)` it is not
replaced, and its `out` is a part of a sum: every launch that reads that buffer is replaced as `sums` says for its own kernel,
so that each rank does to its part what is between the two. The collectives:

| kernel                  | parameters                           | every rank then has                                         |
|-------------------------|--------------------------------------|-------------------------------------------------------------|
| `all_reduce`            | `x`, `out`                           | in `out` the sum of all `x`                                 |
| `all_reduce_add`        | `x`, `residual`                      | that sum added to `residual`, rounded once                  |
| `all_reduce_add_scaled` | `x`, `residual`, `weight`, `scaled`, | the same; in `scaled` the new residual times `weight`, in   |
|                         | `squares`                            | `squares` the sum of squares of each ROWS elements          |
| `all_gather`            | `x`, `out`                           | in `out` all `x`, one after the other along the first axis  |

All add in f32 in the order of ranks, so every rank has the same bits. No rank may change `x` before it has left the next
collective: the others may still read it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tilec.step.caches import with_caches
from tilec.step.collectives import COLLECTIVES
from tilec.step.declaration import (
    Condition,
    Declaration,
    Declared,
    Items,
    Launch,
    Layers,
    Reference,
    Sharding,
    Statement,
    Sum,
)  # fmt: skip
from tilec.step.expressions import Expression, StepError, expression
from tilec.step.formats import in_format
from tilec.step.graph import Kind
from tilec.step.layers import LayerKinds

RANKS: Final = "ranks"
"""The name of the number of ranks in a step's text."""

GPUS: Final = "gpus"
"""Key of a bundle's config for the number of ranks whose steps it has kernels for; absent for one."""

MAX_RANKS: Final = 8
"""The most GPUs of a machine that can read each other's memory."""

MAX_ALIKE: Final = 64
"""The most launches of a step with one name."""

AXES: Final = {"rows": 0, "columns": 1}

_Tables = Callable[[ast.Dict], list[tuple[str, ast.expr]]]


def read_shards(table: Iterable[tuple[str, ast.expr]], weights: Mapping[str, Declared]) -> dict[str, Sharding]:
    """The table `shards` of a text; StepError for what is none, or for a weight that was not declared before."""
    found: dict[str, Sharding] = {}
    for name, node in table:
        match node:
            case ast.Call(func=ast.Name(id="rows" | "columns" as axis), args=[_, *_] as args, keywords=[]) if (
                name in weights and all(isinstance(one, ast.Name) for one in args)
            ):
                numbers = tuple(one.id for one in args if isinstance(one, ast.Name))
                found[name] = Sharding(AXES[axis], numbers)
            case _:
                raise StepError(f"`{name}` is not a weight and its `rows(NUMBER)` or `columns(NUMBER)`", node)
    return found


def read_sums(table: Iterable[tuple[str, ast.expr]], items: _Tables) -> dict[str, Sum]:
    """The table `sums` of a text; StepError for what is none. `items` are the entries of a dict."""
    found: dict[str, Sum] = {}
    for kernel, node in table:
        match node:
            case ast.Call(func=ast.Name(id="part"), args=[ast.Name(id=parameter)], keywords=[]):
                found[kernel] = Sum({}, {}, parameter)
                continue
            case _:
                pass
        if not isinstance(node, ast.Dict):
            raise StepError(f"`{kernel}` has no table of buffers and launches, and is no `part(out)`", node)
        buffers: dict[str, tuple[str, bool]] = {}
        launches: dict[str, tuple[str, Mapping[str, ast.expr]]] = {}
        for name, value in items(node):
            match value:
                case ast.Call(func=ast.Name(id="like" | "share_of" as kind), args=[ast.Name(id=parameter)], keywords=[]) if (
                    name.isidentifier()
                ):
                    buffers[name] = (parameter, kind == "share_of")
                case ast.Call(func=ast.Name(id=launched), args=[], keywords=keywords) if name.isidentifier() and all(
                    one.arg is not None for one in keywords
                ):
                    launches[name] = (launched, {str(one.arg): one.value for one in keywords})
                case _:
                    what = f"`{name}` is not a buffer, as `like(out)` or `share_of(parts)`, nor a launch"
                    raise StepError(what, value)
        if sum(launched in COLLECTIVES for launched, _ in launches.values()) != 1:
            known = ", ".join(f"`{one}`" for one in COLLECTIVES)
            raise StepError(f"`{kernel}` becomes whole by one of {known}", node)
        found[kernel] = Sum(buffers, launches)
    return found


def shared_numbers(declaration: Declaration, numbers: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """A rank's numbers of a model; StepError if the step has no `shards`, or ranks cannot have equal parts."""
    if not declaration.shards:
        raise StepError("the step has no `shards`, so it runs on one GPU")
    if not 1 < ranks <= MAX_RANKS:
        raise StepError(f"{ranks} ranks are asked for, and a step is shared by 2 to {MAX_RANKS}")
    found, kinds = dict(numbers), LayerKinds(declaration, numbers) if declaration.kinds else None
    shared = [one for name, one in declaration.shards.items() if kinds is None or kinds.in_some(declaration.weights[name])]
    for name in dict.fromkeys(name for sharding in shared for name in sharding.numbers):
        value = numbers.get(name)
        if type(value) is not int or value % ranks:
            raise StepError(f"`{name}` is {value}, which {ranks} ranks cannot share equally")
        found[name] = value // ranks
    return found


def among_ranks(declaration: Declaration) -> Declaration:
    """The declaration that each of several ranks has: launches replaced as `sums` says, in all modes and formats. StepError for
    a launch that sums over columns, or reads a part of such a sum, and for which `sums` has nothing."""
    replacer = _Replacer(declaration)
    modes = {name: replacer.statements(body, per_layer=False) for name, body in declaration.modes.items()}
    formats = {name: form for name, (form, _) in declaration.formats.items()}
    shared = replace(declaration, modes=modes, buffers={**declaration.buffers, **replacer.buffers}, formats={}, caches={})
    shared = replace(shared, formats={name: (form, in_format(shared, form)) for name, form in formats.items()})
    return with_caches(shared, {name: form for name, (form, _) in declaration.caches.items()})


@dataclass(frozen=True, slots=True)
class _Scope:
    """What arguments in a table of `sums` may name: the launch's own arguments, and the buffers that the table adds."""

    launch: Launch
    added: Mapping[str, Reference]

    def arguments(
        self, kernel: str, given: Mapping[str, ast.expr]
    ) -> tuple[dict[str, Expression], dict[str, Reference], dict[str, Expression]]:  # fmt: skip
        """The constants, tensors and scalars of a launch that the table names."""
        constants: dict[str, Expression] = {}
        tensors: dict[str, Reference] = {}
        scalars: dict[str, Expression] = {}
        for parameter, node in given.items():
            name = node.id if isinstance(node, ast.Name) else ""
            tensor = self.added.get(name) or self.launch.tensors.get(name)
            if parameter.isupper() and tensor is None:
                constants[parameter] = self.launch.constants.get(name) or expression(node)
            elif tensor is not None:
                tensors[parameter] = tensor
            elif name in self.launch.scalars:
                scalars[parameter] = self.launch.scalars[name]
            else:
                raise StepError(f"`{ast.unparse(node):.60}` is no tensor of `{self.launch.kernel}`, as `{kernel}` needs", node)
        return constants, tensors, scalars


class _Replacer:
    """Replaces launches by those of ranks; `buffers` are what it adds."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._columns = {name for name, sharding in declaration.shards.items() if sharding.axis == 1}
        self._parts = {name for body in declaration.modes.values() for name in self._left(body)}
        self.buffers: dict[str, Declared] = {}

    def statements(self, body: tuple[Statement, ...], *, per_layer: bool) -> tuple[Statement, ...]:
        """The statements of a rank."""
        found: list[Statement] = []
        for statement in body:
            match statement:
                case Launch():
                    found.extend(self._launches(statement, per_layer))
                case Condition(test=test, then=then, otherwise=otherwise):
                    branches = (self.statements(branch, per_layer=per_layer) for branch in (then, otherwise))
                    found.append(Condition(test, *branches))
                case Layers(body=inner):
                    found.append(Layers(self.statements(inner, per_layer=True)))
                case Items():
                    found.append(statement)
        return tuple(found)

    def _left(self, body: Iterable[Statement]) -> Iterator[str]:
        """The names of the buffers that launches leave as parts of sums; StepError if a launch has no such parameter."""
        for statement in body:
            match statement:
                case Launch(kernel=kernel, tensors=tensors) if self._sums_columns(statement):
                    left = self._declaration.sums[kernel].left if kernel in self._declaration.sums else ""
                    if left and (left not in tensors or tensors[left].declared.kind is Kind.WEIGHT):
                        raise StepError(f"`{kernel}` has no buffer `{left}`, as `sums` says", statement.node)
                    yield from [tensors[left].declared.name] if left else ()
                case Condition(then=then, otherwise=otherwise):
                    yield from self._left((*then, *otherwise))
                case Layers(body=inner):
                    yield from self._left(inner)
                case _:
                    pass

    def _sums_columns(self, launch: Launch) -> bool:
        return any(reference.declared.name in self._columns for reference in launch.tensors.values())

    def _launches(self, launch: Launch, per_layer: bool) -> Iterator[Launch]:
        table = self._declaration.sums.get(launch.kernel)
        of_columns = self._sums_columns(launch)
        of_part = any(reference.declared.name in self._parts for reference in launch.tensors.values())
        if (not of_columns and not of_part) or (of_columns and table is not None and table.left):
            yield launch
            return
        if table is None or table.left:
            over = "sums over the columns of a weight that ranks share" if of_columns else "reads a part of a sum"
            raise StepError(f"`{launch.kernel}` {over}, and `sums` has no launches for it", launch.node)
        added = {
            name: Reference(self._buffer(launch, name, *like, per_layer), False, None) for name, like in table.buffers.items()
        }
        scope = _Scope(launch, added)
        for name, (kernel, given) in table.launches.items():
            constants, tensors, scalars = scope.arguments(kernel, given)
            if kernel in COLLECTIVES:
                constants["RANKS"] = _number_of_ranks(launch)
            yield Launch(f"{launch.name}_{name}", kernel, constants, tensors, scalars, launch.node)

    def _buffer(self, launch: Launch, name: str, parameter: str, divided: bool, per_layer: bool) -> Declared:
        """A new buffer like that of a parameter of a launch."""
        reference = launch.tensors.get(parameter)
        if reference is None or reference.declared.kind is Kind.WEIGHT:
            raise StepError(f"`{launch.kernel}` has no buffer `{parameter}`, as `sums` says", launch.node)
        like = reference.declared
        shape = list(reference.shape or like.shape)
        if divided:
            node = ast.BinOp(left=shape[0].node, op=ast.FloorDiv(), right=ast.Name(id=RANKS))
            shape[0] = expression(ast.copy_location(node, launch.node))
        stem = f"{'layers.*.' if per_layer else ''}{launch.name}_{name}"
        found = Declared(stem, Kind.ACTIVATION, like.dtype, tuple(shape), {}, {})
        for number in range(1, MAX_ALIKE):
            full = stem if number == 1 else f"{stem}_{number}"
            existing = self.buffers.get(full)
            if existing is not None and _alike(existing, found):  # of a launch of this name in another mode or branch
                return existing
            if existing is None and full not in self._declaration.buffers:
                self.buffers[full] = replace(found, name=full)
                return self.buffers[full]
        raise StepError(f"more than {MAX_ALIKE} launches are called `{launch.name}`", launch.node)


def _alike(first: Declared, second: Declared) -> bool:
    """Whether two buffers have the same dtype and the same extents in the text."""
    shapes = [[ast.dump(axis.node) for axis in declared.shape] for declared in (first, second)]
    return first.dtype == second.dtype and shapes[0] == shapes[1]


def _number_of_ranks(launch: Launch) -> Expression:
    return expression(ast.copy_location(ast.Name(id=RANKS), launch.node))
