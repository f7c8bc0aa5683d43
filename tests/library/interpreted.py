"""The library's functions on NumPy arrays: its ops, declared as for PyTorch, run on the interpreter.

What a function does with tensors, the constants that it chooses, and the gradients that it registers are its own; only the
launch is another. `Array` has the methods of a PyTorch tensor that the functions use.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilec
from tilec.frontend import load_kernel, read_interface
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ops.declaration import declare
from tilec.runtime.values import TRUSTED
from tilec.target.dtypes import DTYPES, numpy_dtype

PACKAGE = "tilec.kernels"
OWN_TABLES = {(kernel, "starts") for kernel in ("grouped_matmul", "grouped_matmul_backward_x", "grouped_swiglu")}
"""Tensors that a kernel of the library makes and another one trusts; nothing else in memory is trusted."""
NAMES = {numpy_dtype(dtype): name for name, dtype in DTYPES.items()}


class Array(np.ndarray):
    """A NumPy array with the methods of a tensor; like a reshaped tensor, a reshaped one may still have gaps."""

    def contiguous(self) -> Array:
        return self if self.is_contiguous() else self.copy()

    def is_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def clone(self) -> Array:
        return self.copy()

    def element_size(self) -> int:
        return self.itemsize

    def storage_offset(self) -> int:
        """Elements from the beginning of the memory that it is a view of."""
        owner: Any = self
        while owner.base is not None:
            owner = owner.base
        return (self.ctypes.data - owner.ctypes.data) // self.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.itemsize for step in self.strides)

    def dim(self) -> int:
        return self.ndim

    def unflatten(self, axis: int, sizes: tuple[int, ...]) -> Any:
        return self.reshape(*self.shape[:axis], *sizes, *self.shape[axis + 1 :])

    def flatten(self, first: Any = 0, last: int = -1) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As of a tensor; the array's own takes an order."""
        return self.reshape(*self.shape[:first], -1, *self.shape[last % self.ndim + 1 :])

    def new_empty(self, shape: tuple[int, ...]) -> Array:
        return tensor(np.full(shape, np.nan), self.dtype)

    def new_zeros(self, shape: tuple[int, ...]) -> Array:
        return tensor(np.zeros(shape), self.dtype)

    def permute(self, *axes: int) -> Any:
        return self.transpose(axes)

    def new_ones(self, shape: tuple[int, ...]) -> Array:
        return tensor(np.ones(shape), self.dtype)

    def new_full(self, shape: tuple[int, ...], value: float) -> Array:
        return tensor(np.full(shape, value), self.dtype)

    def int(self) -> Array:
        return tensor(self, np.int32)

    def float(self) -> Array:
        return tensor(self, np.float32)

    def to(self, dtype: Any) -> Array:
        return tensor(self, dtype)

    def detach(self) -> Array:
        return self

    def numel(self) -> int:
        return self.size


def tensor(values: Any, dtype: Any = None) -> Array:
    """An `Array` of its own."""
    return np.array(values, dtype).view(Array)


@dataclass
class Call:
    """A launch: the kernel and its constants."""

    kernel: str
    constants: Mapping[str, Any]


@dataclass
class InterpretedOp:
    """What `tilec.op` returns, on the interpreter."""

    path: Path
    calls: list[Call]
    declaration: Any
    trusted: frozenset[str] = frozenset()
    autograd: Any = None
    __name__: str = field(default="", init=False)

    def register_autograd(self, backward: Any, *, setup_context: Any) -> None:
        self.autograd = (backward, setup_context)

    def __call__(self, *args: Any) -> Any:
        declared = self.declaration
        given = dict(zip((argument.name for argument in declared.arguments), args, strict=True))
        arrays = {argument.name: given[argument.name] for argument in declared.arguments if argument.access}
        for argument in declared.arguments:  # as the launcher requires
            if argument.access:
                array = arrays[argument.name]
                assert array.is_contiguous() or not argument.contiguous, argument.name
                assert array.storage_offset() * array.element_size() % 16 == 0, argument.name
        scalars = {argument.name: given[argument.name] for argument in declared.arguments if not argument.access}
        known = declared.known({name: (NAMES[array.dtype], array.shape) for name, array in arrays.items()}, scalars)
        constants = declared.specialisation(known)
        self.calls.append(Call(self.path.stem, constants))
        outputs = {
            argument.name: tensor(np.full(shape, math.nan if DTYPES[dtype].is_float else -1), numpy_dtype(DTYPES[dtype]))
            for argument, (dtype, shape) in zip(declared.outputs, declared.shapes(declared.outputs, known), strict=True)
        }
        everything = {**arrays, **outputs}
        if not any(0 in array.shape for array in everything.values()):
            self._check_trusted(everything, known)
            run(function(self.path, tuple(constants.items())), everything, scalars)
        found = tuple(outputs.values())
        return found[0] if len(found) == 1 else found or None

    def _check_trusted(self, arrays: Mapping[str, Array], known: Mapping[str, Any]) -> None:
        """What the kernel states of stored integers holds, so that the library may say so."""
        for fact in function(self.path, tuple(self.declaration.specialisation(known).items())).values:
            stored, low, high = arrays[fact.tensor], fact.low.evaluate(known), fact.high.evaluate(known)
            assert fact.tensor in self.trusted and ((stored >= low) & (stored < high)).all(), fact
            assert fact.sorted and fact.ends and (np.diff(stored) >= 0).all() and (stored[0], stored[-1]) == (low, high - 1), (
                fact
            )


@cache
def function(path: Path, constants: tuple[tuple[str, Any], ...]) -> Function:
    """A kernel at the values of its constants."""
    return load_kernel(path, dict(constants), root=path.parent)


def _results(found: Any) -> list[Any]:
    return list(found) if type(found) is tuple else [found]  # pyright: ignore[reportUnknownArgumentType]


@dataclass
class Context:
    """What PyTorch passes to `setup_context` and `backward`."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Any, ...] = ()
    constant: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        assert not value


@dataclass
class Library:
    """The library, its ops by name, and the launches so far."""

    module: ModuleType
    ops: dict[str, InterpretedOp]
    calls: list[Call]

    def gradient(self, op: str, inputs: tuple[Any, ...], output: Any, *gradients: Any) -> Any:
        """What an op gives as gradients of `inputs`, as PyTorch asks for them."""
        backward, setup_context = self.ops[op].autograd
        ctx = Context((True,) * len(inputs))
        setup_context(ctx=ctx, inputs=inputs, output=output)
        found = backward(ctx, *gradients)
        outputs = _results(output)
        assert len(_results(found)) == len(inputs), "a gradient or None for each input"
        assert backward(ctx, *(None for _ in outputs)) == (None,) * len(inputs), "no gradient without one"
        assert [id(one) for one in ctx.constant] == [id(one) for one in outputs[1:]], "results that no one differentiates"
        return found


@contextmanager
def interpreted() -> Generator[Library]:
    """The library, imported anew with ops that the interpreter runs."""
    calls: list[Call] = []
    ops: dict[str, InterpretedOp] = {}

    def op(path: Path, *, constants: Any, dims: Any, mutates: Any, name: str, values: Any = None) -> InterpretedOp:
        namespace, _, own = name.partition("::")
        assert namespace == "tilec_kernels" and own not in ops
        trusted = dict(values or {})
        assert all(stated is TRUSTED and (path.stem, tensor) in OWN_TABLES for tensor, stated in trusted.items()), "not its own"
        declared = declare(read_interface(path), mutates, constants, dims)
        ops[own] = InterpretedOp(path, calls, declared, frozenset(trusted))
        return ops[own]

    with pytest.MonkeyPatch.context() as patch:
        for module in _imported():
            patch.delitem(sys.modules, module)
        patch.setattr(tilec, "kernels", None, raising=False)
        patch.setattr(tilec, "op", op)
        patch.setitem(sys.modules, "torch", ModuleType("torch"))
        try:
            yield Library(importlib.import_module(PACKAGE), ops, calls)
        finally:
            for module in _imported():
                del sys.modules[module]


def _imported() -> list[str]:
    return [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
