"""A kernel's declarations before any constant has a value: takes a kernel file, returns an `Interface`.

Its dims and dtypes refer to constants by name; `build` applies the same rules to create the parameters of one specialisation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend.build import only_kernel
from tilec.frontend.module import read_module
from tilec.frontend.signature import constant_names, read_declared
from tilec.ir.expr import Expr
from tilec.ir.types import TensorType, TileType


@dataclass(frozen=True, slots=True)
class Declared:
    """A parameter. `dtype` names a dtype, or the `Element` constant that determines it. A tensor has an `access` as in a
    manifest, and `dims` over dims, constants and integer parameters; `contiguous` means row-major strides. A scalar has no
    access."""

    name: str
    dtype: str
    access: str = ""
    dims: tuple[Expr, ...] = ()
    contiguous: bool = True


@dataclass(frozen=True, slots=True)
class Interface:
    """A kernel's parameters in order, and the names of its constants."""

    kernel: str
    parameters: tuple[Declared, ...]
    constants: tuple[str, ...]


def read_interface(path: Path | str) -> Interface:
    """Reads the only kernel of a file; CompileError E0101..E0104, E0107, E0112, E0213."""
    routine = only_kernel(read_module(Path(path), None))
    found: list[Declared] = []
    for parameter in read_declared(routine):
        type_ = parameter.value.type
        if isinstance(type_, TensorType):
            assert parameter.access is not None
            access, dims = parameter.access.value, type_.dims
            found.append(Declared(parameter.name, type_.dtype.name, access, dims, type_.strides is None))
        else:
            assert isinstance(type_, TileType)
            found.append(Declared(parameter.name, type_.dtype.name))
    return Interface(routine.name, tuple(found), tuple(constant_names(routine)))


def kernel_file(kernel: Callable[..., Any] | str | Path) -> Path:
    """The file of a kernel function, or the path itself; CompileError E0102 if the function is not defined in a file."""
    if isinstance(kernel, (str, Path)):
        return Path(kernel)
    try:
        found = inspect.getsourcefile(inspect.unwrap(kernel))
    except TypeError:
        found = None
    if found is None or not Path(found).is_file():
        name = getattr(kernel, "__name__", str(kernel))
        hint = "write the kernel in a file of its own, and import it: kernels are read, never run"
        raise CompileError(Diagnostic("E0102", f"kernel `{name:.200}` is in no file", hint=hint))
    return Path(found)
