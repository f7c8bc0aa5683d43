"""The ops of `tilec.kernels` in PyTorch without a GPU: plain CPU tensors, with the tile interpreter in place of the launch.

Schema, fake tensors, gradients and `torch.compile` are those of `tilec.ops.torch_op`. `install()` must be called before the ops
are made.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

import tilec
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ops import graph_op
from tilec.ops.declaration import Declaration
from tilec.target.dtypes import DTYPES, numpy_dtype

torch: Any = importlib.import_module("torch")
torch_op: Any = importlib.import_module("tilec.ops.torch_op")
EIGHT_BITS: Final = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
SOURCE: Final = Path(tilec.__file__).parent / "kernels" / "source"


def install(source: Path = SOURCE) -> None:
    """Let every op that is made from now on take CPU tensors. `source`: the folder of their kernels."""
    register = torch_op.TorchOp._register

    def with_cpu(op: Any, qualified: str, call: Callable[..., Any]) -> None:
        register(op, qualified, call)
        op._interpreted = implementation(op.declaration, source)
        name = str(op._overload).split(".")[1]
        op._library.impl(name, op._interpreted, "CPU")
        if not op.declaration.mutated and graph_op.has_guards(torch):
            op._library.impl(name + graph_op.IN_GRAPHS, op._interpreted, "CPU")

    torch_op.check_devices = _anywhere
    torch_op.TorchOp._register = with_cpu
    torch_op.TorchOp._first = _launched


def _anywhere(kernel: str, tensors: Any) -> None:
    """A launch takes CUDA tensors of one device; the interpreter takes any."""


def _launched(op: Any, key: Any, integers: Any, args: tuple[Any, ...]) -> Any:
    return op._interpreted(*args)


def implementation(declared: Declaration, source: Path = SOURCE) -> Callable[..., Any]:
    """The op on CPU tensors. Outputs are NaN or -1 where the kernel writes nothing."""

    def interpreted(*args: Any) -> Any:
        given = dict(zip((argument.name for argument in declared.arguments), args, strict=True))
        tensors = {argument.name: given[argument.name] for argument in declared.arguments if argument.access}
        for argument in declared.arguments:  # as the launcher requires
            tensor = tensors.get(argument.name)
            if tensor is not None and not (tensor.data_ptr() % 16 == 0 and (tensor.is_contiguous() or not argument.contiguous)):
                raise AssertionError(f"`{argument.name}` of {declared.kernel} has gaps or an unaligned address")
        scalars = {name: value for name, value in given.items() if name not in tensors}
        known = declared.known({name: (torch_op.NAMES[one.dtype], tuple(one.shape)) for name, one in tensors.items()}, scalars)
        constants = declared.specialisation(known)
        allocated = (*declared.outputs, *declared.scratch)
        made = {
            argument.name: np.full(shape, math.nan if DTYPES[dtype].is_float else -1, numpy_dtype(DTYPES[dtype]))
            for argument, (dtype, shape) in zip(allocated, declared.shapes(allocated, known), strict=True)
        }
        arrays = {name: as_array(tensor) for name, tensor in tensors.items()} | made
        if not any(0 in array.shape for array in arrays.values()):
            run(_function(source / f"{declared.kernel}.py", tuple(constants.items())), arrays, scalars)
        results = [as_tensor(made[argument.name]) for argument in declared.outputs]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    return interpreted


@cache
def _function(kernel: Path, constants: tuple[tuple[str, Any], ...]) -> Function:
    return load_kernel(kernel, dict(constants), root=kernel.parent)


def as_array(tensor: Any) -> Any:
    """The memory of a tensor as an array."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype in EIGHT_BITS:
        return tensor.view(torch.uint8).numpy().view(EIGHT_BITS[tensor.dtype])
    return tensor.numpy()


def as_tensor(array: Any) -> Any:
    """An array as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
