"""From a kernel file to a tile IR function for one specialisation."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Fix, Label, Span
from tilec.frontend.calls import call
from tilec.frontend.emitter import At, Emitter, Term
from tilec.frontend.liveness import analyse, assigned
from tilec.frontend.loop_exits import plain_loops
from tilec.frontend.module import NO_TEXTS, ElementName, Module, Routine, read_module
from tilec.frontend.printing import name_blocks
from tilec.frontend.ranks import check_meet
from tilec.frontend.report import Refused, compile_error
from tilec.frontend.scope import Builders, Scope
from tilec.frontend.signature import Constant, constant_names, read_signature
from tilec.frontend.statements import run
from tilec.ir.aligned import ALIGNED, multiple_of, read_aligned, without_aligned
from tilec.ir.core import Function, Precondition
from tilec.ir.expr import binary, const, sym
from tilec.ir.types import DTYPES


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The declarations of a kernel file, before any constant has a value.

    `parameters` are the launch parameters in order with their annotations as written, `constants` the `Const` names, `elements`
    those of them that name dtypes. `files` are all files whose text the kernel depends on; `absent` are the paths that imports
    tried and did not find: a file that appears there changes the import.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    constants: tuple[str, ...]
    elements: tuple[str, ...]
    files: tuple[Path, ...]
    absent: tuple[Path, ...]


def read_kernel(path: Path | str, *, root: Path | None = None, texts: Mapping[str, str] = NO_TEXTS) -> KernelSource:
    """Reads the declarations of a kernel file; `texts` as in `read_module`. CompileError E0101..E0104, E0107, E0112."""
    module = read_module(Path(path), root, texts)
    routine = only_kernel(module)
    arguments = routine.node.args
    try:
        parameters = tuple(
            (arg.arg, ast.unparse(arg.annotation) if arg.annotation is not None else "")
            for arg in (*arguments.posonlyargs, *arguments.args)
        )
    except (RecursionError, MemoryError):
        raise _too_deep(module, routine) from None
    constants = tuple(constant_names(routine))
    elements = tuple(name for name in constants if isinstance(module.names.get(name), ElementName))
    return KernelSource(routine.name, parameters, constants, elements, tuple(module.files), tuple(module.absent))


def load_kernel(
    path: Path | str, constants: Mapping[str, Constant], *, root: Path | None = None, texts: Mapping[str, str] = NO_TEXTS,
    uses: list[tuple[Span, Term]] | None = None,
) -> Function:  # fmt: skip
    """Compiles the only kernel of a file to tile IR with `constants` folded in.

    With `root`, spans name files relative to it; `texts` as in `read_module`. If `uses` is given, the term of every expression
    and assigned name is appended to it in evaluation order; a span has several terms if its function is called several times.
    With the constant of `tilec.ir.aligned`, it is the aligned version, which has these further `requires`. CompileError carries
    every problem found, in source order.
    """
    module = read_module(Path(path), root, texts)
    routine = only_kernel(module)
    try:
        return _build(module, routine, constants, uses)
    except (RecursionError, MemoryError):
        raise _too_deep(module, routine) from None


def _too_deep(module: Module, routine: Routine) -> CompileError:
    message, hint = f"kernel `{routine.name}` is nested too deeply", "split expressions, and give parts of them names"
    return CompileError(Diagnostic("E0512", message, Label(module.source.span(routine.node)), hint=hint))


def only_kernel(module: Module) -> Routine:
    """The kernel of a file; CompileError E0103 for none, E0104 for several."""
    if not module.kernels:
        hint = "mark the kernel function with `@tilec.kernel`"
        raise CompileError(Diagnostic("E0103", f"no kernel in `{module.source.file}`", hint=hint))
    if len(module.kernels) > 1:
        first, second = module.kernels[:2]
        span = module.source.span(second.node)
        secondary = (Label(module.source.span(first.node), "the first kernel"),)
        raise CompileError(Diagnostic("E0104", f"more than one kernel in `{module.source.file}`", Label(span), secondary,
                                      hint="keep one kernel per file; share code with `@tilec.function`"))  # fmt: skip
    return module.kernels[0]


def _build(
    module: Module, routine: Routine, constants: Mapping[str, Constant], uses: list[tuple[Span, Term]] | None
) -> Function:  # fmt: skip
    signature = read_signature(routine, without_aligned(constants))
    emitter = Emitter(signature.parameters, signature.strides)
    emitter.uses = uses
    env: dict[str, Term] = {}
    for parameter in signature.parameters:
        parameter.value.owner = emitter.body
        emitter.body.arguments.append(parameter.value)
        env[parameter.name] = parameter.value
        if parameter.access is None and parameter.value.tile.dtype.is_integer:
            emitter.know(parameter.value, sym(parameter.name))
    env |= {name: tuple(one.value for one in tensors) for name, tensors in signature.of_ranks.items()}
    for name, value in signature.constants.items():
        env[name] = DTYPES[value] if isinstance(value, str) else value
    function = Function(routine.name, signature.parameters, emitter.body, dims=tuple(signature.dims),
                        strides=tuple(signature.strides), constants=dict(signature.constants),
                        loc=module.source.span(routine.node))  # fmt: skip
    for extent, span in signature.even.items():
        function.requires += (Precondition(binary("==", binary("%", extent, const(2)), const(0)), span),)
    if ALIGNED in constants:
        _align(function, constants[ALIGNED])
    body = plain_loops(routine.node, module)
    scope = Scope(module, function, signature, emitter, env, frozenset(assigned(body)) | frozenset(env), analyse(body), [],
                  Builders(call, run), (routine,))  # fmt: skip
    try:
        run(scope, body)
        _check_grid(scope, routine)
        check_meet(scope)
        name_blocks(function)
    except Refused as refused:
        scope.problems.extend([refused.diagnostic] if refused.diagnostic else [])
    except RecursionError:
        deep = scope.at(routine.node).error("E0101", f"kernel `{routine.name}` is nested too deeply", hint="split expressions")
        raise compile_error([d for d in (deep.diagnostic,) if d]) from None
    if scope.problems:
        raise compile_error(scope.problems)
    for op in function.body.walk():
        op.verify()
    return function


def _align(function: Function, text: Constant) -> None:
    """Adds the preconditions of the aligned version. CompileError E0212 for a text that is none, or names no launch value."""
    names = {*function.dims, *(one.name for one in function.parameters if one.access is None)}
    try:
        multiples = read_aligned(text)
    except ValueError as error:
        raise CompileError(Diagnostic("E0212", f"kernel `{function.name}`: {error}")) from None
    for name, number in multiples.items():
        if name not in names:
            message = f"kernel `{function.name}` has no launch value `{name}` that its aligned version could require"
            raise CompileError(Diagnostic("E0212", message, Label(function.loc) if function.loc else None))
        function.requires += (Precondition(multiple_of(name, number), function.loc),)
    function.constants = {**function.constants, ALIGNED: text}


def _check_grid(scope: Scope, routine: Routine) -> None:
    function = scope.function
    if not function.grid and not scope.problems:
        module = scope.module
        raise module.source.error("E0110", f"kernel `{routine.name}` has no grid", routine.node,
                           hint="say how many blocks run: `grid(T)`")  # fmt: skip
    for axis, at in scope.grid_axes.items():
        if function.grid and axis >= len(function.grid):
            count = f"{len(function.grid)} {'axis' if len(function.grid) == 1 else 'axes'}"
            raise at.error("E0110", f"the grid has {count}, axis {axis} is used",
                    hint="give `grid` another extent, or use a smaller axis", fixes=_smaller_axes(scope, at))  # fmt: skip


def _smaller_axes(scope: Scope, at: At) -> tuple[Fix, ...]:
    """Fixes such as `bid(0)` for `bid(1)`, starting with the grid axes that nothing reads yet. If there is exactly one unread
    axis and exactly one axis out of range, the fix is certain."""
    axes = range(len(scope.function.grid))
    unread = [axis for axis in axes if axis not in scope.grid_axes]
    lacking = [axis for axis in scope.grid_axes if axis not in axes]
    word = at.source.text_of(at.span).partition("(")[0]
    return tuple(
        Fix(f"write `{word}({axis})`", "replace", f"{word}({axis})", at.span, certain=[axis] == unread and len(lacking) == 1)
        for axis in [*unread, *(axis for axis in axes if axis not in unread)]
    )
