"""An op on tensors of any framework: takes arguments by the names of the kernel's parameters, makes a checked launch, and
returns the tensors it wrote."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tilec.artifact.records import ScalarSpec
from tilec.frontend import kernel_file, read_interface
from tilec.ops.declaration import Choice, Declaration, declare, refuse, shown_name
from tilec.ops.kernels import Kernels, current_device
from tilec.ops.source_contract import SourceContract
from tilec.runtime import Device, Kernel, LaunchError, Plan, TensorView, view_tensor
from tilec.runtime.dims import solve_dims
from tilec.runtime.kernel import stream_handle
from tilec.runtime.scalars import check_scalar
from tilec.runtime.tensors import contiguous_strides
from tilec.runtime.values import Evidence, Trust, ValueBounds


class Op:
    """A kernel as a function of tensors. Created by `tilec.op`."""

    def __init__(
        self, declaration: Declaration, kernels: Kernels, contract: SourceContract, values: Mapping[str, Evidence]
    ) -> None:  # fmt: skip
        self.declaration, self._contract = declaration, contract
        self.__name__ = declaration.kernel
        self._kernels, self._values = kernels, values
        self._scalars = {
            argument.name: ScalarSpec(argument.name, argument.dtype)
            for argument in declaration.arguments
            if not argument.access
        }
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(argument.name, kind) for argument in declaration.arguments])

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        """The kernels that calls have used so far."""
        return self._kernels.loaded

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None) -> None:
        """Register a gradient, as `torch.library.register_autograd` does. E0919 for an op that writes its arguments, and if
        PyTorch was not imported before the op was created."""
        raise self._without_torch()

    def _without_torch(self) -> LaunchError:
        return refuse(
            self.__name__, "PyTorch was not imported before this op was made", required="`import torch` before `tilec.op`"
        )

    def __deepcopy__(self, memo: Any) -> Op:
        return self  # as functions do, so that models with an op can be copied

    def __repr__(self) -> str:
        return f"<tilec.op {self.__name__}{self.__signature__}>"

    def __call__(self, *args: Any, stream: Any = 0, **kwargs: Any) -> Any:
        """Launch on `stream`, a handle or an object that has one. Returns the `Out` tensors as `DeviceArray`s: one, or a tuple
        in the order of the parameters; None if the kernel writes only arguments. If an extent of 0 leaves nothing to compute,
        they are empty, and nothing is launched. E0919 for a PyTorch tensor: import torch
        before the op is created."""
        arguments = self.bind(args, kwargs)
        device = current_device()
        views: dict[str, TensorView] = {}
        for argument in self.declaration.arguments:
            if argument.access:
                if type(arguments[argument.name]).__module__ == "torch":
                    raise self._without_torch()
                views[argument.name] = view_tensor(
                    arguments[argument.name], kernel=self.__name__, argument=argument.name, device=device.ordinal
                )
        handle = stream_handle(stream)

        def allocate(dtype: str, shape: tuple[int, ...]) -> Any:
            return device.empty(shape, dtype, stream=handle)

        plan, allocated = self.plan(arguments, views, device, allocate, handle)
        if plan is not None:
            plan.launch(handle)
        outputs = allocated[: len(self.declaration.outputs)]
        return None if not outputs else outputs[0] if len(outputs) == 1 else tuple(outputs)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name; E0903 if one is missing, duplicated or unknown."""
        try:
            return self.__signature__.bind(*args, **kwargs).arguments
        except TypeError as error:
            expected = ", ".join(f"`{argument.name}`" for argument in self.declaration.arguments)
            raise LaunchError("E0903", str(error), kernel=self.__name__, required=expected) from None

    def plan(
        self, arguments_by_name: Mapping[str, Any], views: Mapping[str, TensorView], device: Device,
        allocate: Callable[[str, tuple[int, ...]], Any], stream: int,
    ) -> tuple[Plan | None, list[Any]]:  # fmt: skip
        """A checked launch of the matching specialisation, and the tensors that `allocate` created for it: results, then
        scratch. `views` are the tensors among the arguments. None for a launch without blocks and with empty results, which
        needs no kernel."""
        declared = self.declaration
        scalars = {
            parameter.name: arguments_by_name[parameter.name] for parameter in declared.arguments if not parameter.access
        }
        numbers = {name: check_scalar(spec, scalars[name], self.__name__) for name, spec in self._scalars.items()}
        values = declared.known({name: (view.dtype, view.shape) for name, view in views.items()}, numbers)
        constants, allocated_parameters = declared.specialisation(values), (*declared.outputs, *declared.scratch)
        shapes = declared.shapes(allocated_parameters, values)
        made = (TensorView(0, dtype, shape, contiguous_strides(shape)) for dtype, shape in shapes)
        every = {**views, **dict(zip((parameter.name for parameter in allocated_parameters), made, strict=True))}
        is_empty = any(0 in view.shape for view in every.values())
        if is_empty and self._contract.launch_values(constants, every, numbers) is None:
            return None, [allocate(dtype, shape) for dtype, shape in shapes]
        kernel = self._kernels.get(constants, device, lambda manifest: solve_dims(manifest, every, numbers, {}))
        allocated = [allocate(dtype, shape) for dtype, shape in shapes]
        arguments = {
            **scalars,
            **views,
            **{parameter.name: tensor for parameter, tensor in zip(allocated_parameters, allocated, strict=True)},
        }
        try:
            plan = kernel.plan(arguments, values=self._values, stream=stream)
        except LaunchError:
            general = self._kernels.get(constants, device)
            if general is kernel:
                raise
            plan = general.plan(arguments, values=self._values, stream=stream)  # of less demands, or with the better message
        return plan, allocated


def op(
    kernel: Callable[..., Any] | str | Path,
    *,
    constants: Choice = None,
    dims: Choice = None,
    mutates: Iterable[str] = (),
    values: Mapping[str, Evidence] | None = None,
    prebuilt: str | Path | None = None,
    name: str | None = None,
) -> Op:
    """Make a kernel a function of tensors.

    A call takes the kernel's tensors and scalars, except `Out` and `Scratch` tensors, which it allocates; it returns the `Out`
    tensors, and writes `InOut` and `Atomic` ones in place. Constants are inferred from dtypes and shapes: an `Element` is the
    dtype of the tensors that use it, a dim the extent of its axis. The first call of a kind loads a kernel, which is not
    possible during capture of a CUDA graph: make that call before.

    constants: values of the other constants, as in `build.toml`, or a function that computes them from the known dims and
        dtypes by name.
    dims: likewise, for dims that only `Out` tensors have.
    mutates: `Out` tensors that the call receives as arguments and writes.
    values: facts about integers stored in tensors, by the tensor's name, as for `Kernel.plan`; only `TRUSTED` and
        `ValueBounds`.
    prebuilt: a bundle file or a folder of artifacts to take kernels from. Default: what TILEC_PREBUILT names, else
        compiled on demand if the compiler is installed, else installed bundles.
    name: of the op in PyTorch, such as `mine::rms_norm`. Default: the kernel's, under `tilec::`.

    Raises CompileError if the kernel's file cannot be read, LaunchError E0919 if the declaration of the op is invalid.
    """
    path = kernel_file(kernel)
    declaration = declare(read_interface(path), mutates, constants, dims)
    evidence = checked_evidence(declaration, values)
    contract = SourceContract(declaration.interface, path)
    kernels = Kernels(declaration.interface, path, prebuilt)
    if "torch" in sys.modules:
        torch_op: Any = importlib.import_module("tilec.ops.torch_op")
        return torch_op.TorchOp(declaration, kernels, contract, evidence, name)
    return Op(declaration, kernels, contract, evidence)


def checked_evidence(declaration: Declaration, values: Any) -> dict[str, Evidence]:
    """The facts about stored integers by tensor; E0919 for a tensor that the kernel does not have, or evidence that depends on
    the data."""
    if not isinstance(values, Mapping):
        if values is None:
            return {}
        given, required = f"a value of type `{type(values).__name__}`", '`values={"TENSOR": ...}`'
        raise refuse(declaration.kernel, "`values` is not a dict by tensor", given=given, required=required)
    evidence: dict[Any, Any] = dict(values)  # pyright: ignore[reportUnknownArgumentType]
    names = [tensor.name for tensor in declaration.tensors]
    for tensor, stated in evidence.items():
        if tensor not in names:
            existing = ", ".join(f"`{name}`" for name in names)
            raise refuse(declaration.kernel, f"`values` names `{shown_name(tensor)}`, which is no tensor", required=existing)
        if not isinstance(stated, (Trust, ValueBounds)):
            message, given = "an op cannot check stored values at every call", f"a value of type `{type(stated).__name__}`"
            required = "`TRUSTED` or `ValueBounds`"
            raise refuse(declaration.kernel, message, argument=tensor, given=given, required=required)
    return evidence
