"""An op in PyTorch: registered with a schema, a fake implementation and autograd, with a fast path for plain tensors.

PyTorch's dispatcher costs some microseconds per call. Plain CUDA tensors outside of any tracing, mode and gradient bypass it:
`fast_call` generates their call, a function of the kernel's own parameters. If a gradient is recorded, it is by a function of
autograd, which costs a fifth of the dispatcher's. Everything else (fake tensors, subclasses, `torch.func`) goes through the
dispatcher. `torch.compile` sees only the registered op; `graph_op` says what it leaves in graphs.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from tilec.ir.types import DTYPES
from tilec.ops.declaration import Declaration, refuse
from tilec.ops.fast_call import make_call
from tilec.ops.graph_op import IN_GRAPHS, autograd_kernel, has_guards, plain_apply
from tilec.ops.kernels import Kernels, current_device
from tilec.ops.source_contract import SourceContract
from tilec.ops.tensor_op import Op
from tilec.ops.traced import check_devices, check_overlaps, traced_number, traced_view
from tilec.ops.unsigned import all_from_schema, from_schema, to_schema, unsigned_names
from tilec.runtime import LaunchError, TensorView
from tilec.runtime.driver import Driver, DriverError
from tilec.runtime.prepared import Prepared, free_scalars
from tilec.runtime.repeated import Repeated
from tilec.runtime.scalars import check_scalar
from tilec.runtime.values import Evidence

torch: Any = importlib.import_module("torch")  # torch is not a dependency, so its types are not available

TORCH_DTYPES: Final[dict[str, Any]] = {name: getattr(torch, dtype.numpy) for name, dtype in DTYPES.items()}
NAMES: Final = {dtype: name for name, dtype in TORCH_DTYPES.items()}
SCALARS: Final = {"f": "float", "i": "SymInt", "u": "SymInt", "b": "bool"}
NO_CONTEXT: Final = "CUDA_ERROR_INVALID_CONTEXT"
MAX_ENTRIES: Final = 1024
"""Maximum number of cached entries of an op."""
_numbers: dict[str, itertools.count[int]] = {}


@dataclass(slots=True)
class Entry:
    """State cached for calls whose tensors have equal dtypes, shapes, strides and device, and whose integers are equal (any, if
    `integers` is None): the launch; shape, strides and dtype of each tensor to allocate; the CUDA context of the kernel; and,
    once learned, the check that tensors match, whether none of those requires a gradient, and how often it may be learned
    again."""

    launch: Callable[..., None]
    device: int
    integers: tuple[int, ...] | None
    made: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    context: Any
    driver: Driver
    alike: Callable[..., bool] | None = None
    free: bool = False
    chances: int = 4


class TorchOp(Op):
    """A kernel as a function of PyTorch's tensors, on the current stream. Each op has its own class, whose `__call__` is
    generated for it."""

    def __init__(
        self, declaration: Declaration, kernels: Kernels, contract: SourceContract, values: Mapping[str, Evidence],
        name: str | None,
    ) -> None:  # fmt: skip
        super().__init__(declaration, kernels, contract, values)
        self._entries: dict[Any, Entry] = {}
        self._unsigned = unsigned_names(self._scalars)
        self._backward: tuple[Any, Any] | None = None
        self._function = self._autograd_function()
        self._apply = plain_apply(torch, self._function)
        names = helpers() | {
            "entries": self._entries, "first": self._first, "dispatch": self._dispatch,
            "recorded": self._recorded, "checked": self._checked, "checked_bits": self._checked_bits,
            "from_schema": from_schema,
            "last": [_NO_ENTRY],
        }  # fmt: skip
        self._register(name or f"tilec::{declaration.kernel}", make_call(declaration, names, guarded=False))
        call = make_call(declaration, names | {"overload": self._overload}, guarded=True)
        body = {"__call__": call, "__doc__": TorchOp.__doc__, "__module__": __name__}
        self.__class__ = type("TorchOp", (TorchOp,), body)  # pyright: ignore[reportAttributeAccessIssue]

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None) -> None:
        """As `Op.register_autograd`."""
        if self.declaration.mutated:
            message = "an op that writes its arguments has no gradient"
            raise refuse(self.__name__, message, required="an op of `Out` tensors alone")
        self._backward = (backward, setup_context)

    def _register(self, qualified: str, call: Callable[..., Any]) -> None:
        namespace, colons, op_name = qualified.partition("::")
        if not (colons and namespace.isidentifier() and op_name.isidentifier()):
            message = "the name of the op is not valid in PyTorch"
            raise refuse(self.__name__, message, given=f"`{qualified:.80}`", required="`namespace::name`")
        number = next(_numbers.setdefault(qualified, itertools.count(1)))
        if number > 1:  # another op of the same kernel: with other constants, or re-run in a notebook
            op_name, qualified = f"{op_name}_{number}", f"{qualified}_{number}"
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self._library.define(op_name + self.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(op_name, call, "CUDA")
        torch.library.register_fake(qualified, self._fake, lib=self._library)
        self._overload = getattr(getattr(torch.ops, namespace), op_name).default
        if not self.declaration.mutated:
            self._register_gradient(qualified, call)

    def _register_gradient(self, qualified: str, call: Callable[..., Any]) -> None:
        """Registers the gradient, and the operator without one that graphs contain if PyTorch has what that takes."""
        if not has_guards(torch):
            torch.library.register_autograd(
                qualified, self._differentiate, setup_context=self._setup_context, lib=self._library
            )
            return
        namespace, _, op_name = qualified.partition("::")
        in_graphs = op_name + IN_GRAPHS
        self._library.define(in_graphs + self.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(in_graphs, call, "CUDA")
        torch.library.register_fake(qualified + IN_GRAPHS, self._fake, lib=self._library)
        overload = getattr(getattr(torch.ops, namespace), in_graphs).default
        kernel = autograd_kernel(torch, op_name, overload, self._setup_context, self._differentiate)
        self._library.impl(op_name, kernel, "Autograd")

    def schema(self) -> str:
        """Schema of arguments and results, in PyTorch's schema language."""
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        arguments: list[str] = []
        for argument in self.declaration.arguments:
            if not argument.access:
                kind = SCALARS[DTYPES[argument.dtype].kind]
            else:
                kind = f"Tensor({next(letters)}!)" if argument.name in self.declaration.mutated else "Tensor"
            arguments.append(f"{kind} {argument.name}")
        outputs = ["Tensor"] * len(self.declaration.outputs)
        return f"({', '.join(arguments)}) -> " + (outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})")

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        """The results of fake tensors. LaunchError as at run time, for every clause that does not need addresses."""
        arguments = all_from_schema(self.bind(args, kwargs), self._unsigned)
        declared = self.declaration
        tensors = {argument.name: arguments[argument.name] for argument in declared.arguments if argument.access}
        self._check_tensors(tensors)
        numbers = self._traced_numbers(arguments)
        check_devices(self.__name__, tensors)
        dtypes_and_shapes = {name: (self._dtype(name, tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}
        values = declared.known(dtypes_and_shapes, arguments)
        first_tensor = next(iter(tensors.values()))
        shapes = declared.shapes(declared.outputs, values)
        self._check_traced(numbers, tensors)
        results = [first_tensor.new_empty(shape, dtype=TORCH_DTYPES[dtype]) for dtype, shape in shapes]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    def _traced_numbers(self, arguments: Mapping[str, Any]) -> dict[str, int | float]:
        """The checked scalars of a traced call, without those that depend on data."""
        traced = all_from_schema({name: traced_number(arguments[name]) for name in self._scalars}, self._unsigned)
        return {
            name: check_scalar(self._scalars[name], number, self.__name__)
            for name, number in traced.items()
            if number is not None or arguments[name] is None
        }

    def _check_traced(self, numbers: Mapping[str, int | float], tensors: Mapping[str, Any]) -> None:
        """Check a traced call at the sizes it was traced with; nothing if one depends on data."""
        declared = self.declaration
        views = {
            name: traced_view(self._dtype(name, tensor), tuple(tensor.shape), tuple(tensor.stride()))
            for name, tensor in tensors.items()
        }
        found = {name: view for name, view in views.items() if view is not None}
        if len(numbers) < len(self._scalars) or len(found) < len(views):
            return
        values = declared.known({name: (view.dtype, view.shape) for name, view in found.items()}, numbers)
        allocated = (*declared.outputs, *declared.scratch)
        made = {
            argument.name: view
            for argument, (dtype, shape) in zip(allocated, declared.shapes(allocated, values), strict=True)
            if (view := traced_view(dtype, shape)) is not None
        }
        constants = declared.specialisation(values)
        env = self._contract.launch_values(constants, {**found, **made}, numbers)
        if env is not None:
            check_overlaps(self.__name__, tensors, found, declared.mutated)
            self._contract.check_values(constants, found, env, self._values)

    def _check_tensors(self, tensors: Mapping[str, Any]) -> None:
        """E0914 for an argument that is no PyTorch tensor, E0907 for one without strides."""
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                given = f"a value of type `{type(tensor).__name__}`"
                raise LaunchError(
                    "E0914", "not a PyTorch tensor", kernel=self.__name__, argument=name, given=given, required="a CUDA tensor"
                )
            if tensor.layout is not torch.strided:
                raise LaunchError(
                    "E0907", "the tensor is not dense", kernel=self.__name__, argument=name, given=f"`{tensor.layout}`",
                    required=f"`torch.strided`: `{name}.to_dense()`",
                )  # fmt: skip

    def _dispatch(self, *args: Any) -> Any:
        """Calls through PyTorch's dispatcher, or as `Op` does if no argument is a PyTorch tensor."""
        if any(isinstance(arg, torch.Tensor) for arg in args):
            arguments = {argument.name: arg for argument, arg in zip(self.declaration.arguments, args, strict=True)}
            self._check_tensors({name: arg for name, arg in arguments.items() if name not in self._scalars})
            for name in self._scalars:
                if not hasattr(arguments[name], "node"):  # a symbolic number is PyTorch's to check
                    arguments[name] = self._checked_bits(name, arguments[name])
            return self._overload(*arguments.values())
        return super().__call__(*args, stream=torch.cuda.current_stream())

    def _recorded(self, *args: Any) -> Any:
        """Calls with plain tensors of which one has a gradient."""
        return self._dispatch(*args) if self._backward is None else self._apply(*args)

    def _autograd_function(self) -> Any:
        """The op as a function of autograd. Its `forward` takes the context: PyTorch's form with `setup_context` apart, like
        its dispatcher, takes five times as long per call."""

        def forward(ctx: Any, *args: Any) -> Any:
            result = self(*args)  # autograd records nothing here
            self._setup_context(ctx, args, result)
            return result

        members = {"forward": staticmethod(forward), "backward": staticmethod(self._differentiate)}
        return type(self.__name__, (torch.autograd.Function,), members)

    def _checked(self, name: str, value: Any) -> int | float | bool:
        number = check_scalar(self._scalars[name], value, self.__name__)
        return bool(number) if self._scalars[name].dtype == "bool" else number

    def _checked_bits(self, name: str, value: Any) -> int | float | bool:
        """A checked scalar as the schema has it."""
        number = self._checked(name, value)
        return to_schema(int(number)) if name in self._unsigned else number

    def _first(self, key: tuple[Any, ...], integers: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        """The first call with tensors of a given key, and with these integers if the launch depends on them."""
        arguments = {argument.name: arg for argument, arg in zip(self.declaration.arguments, args, strict=True)}
        tensors = {argument.name: arguments[argument.name] for argument in self.declaration.arguments if argument.access}
        first_tensor = next(iter(tensors.values()))
        if all(tensor.device.type == "meta" for tensor in tensors.values()):
            return self._dispatch(*args)
        for name, spec in self._scalars.items():  # before tensors, as when tracing
            check_scalar(spec, arguments[name], self.__name__)
        views = {name: self._view(name, tensor, first_tensor.device) for name, tensor in tensors.items()}
        allocated: list[Any] = []

        def allocate(dtype: str, shape: tuple[int, ...]) -> TensorView:
            allocated.append(first_tensor.new_empty(shape, dtype=TORCH_DTYPES[dtype]))
            return self._view("", allocated[-1], first_tensor.device)

        with torch.cuda.device(first_tensor.device):
            device, stream = current_device(), torch.cuda.current_stream().cuda_stream
            plan, _ = self.plan(arguments, views, device, allocate, stream)
            if plan is not None:
                plan.launch(stream)
            context = device.driver.context()
        made = {argument.name for argument in (*self.declaration.outputs, *self.declaration.scratch)}
        chosen = callable(self.declaration.constants) or callable(self.declaration.dims)  # by a function that may see integers
        scalars = () if plan is None or chosen else free_scalars(plan.kernel.manifest)
        is_free = bool(integers) and len(scalars) == len(self._scalars)
        launch = _launch_nothing
        if plan is not None:
            launch = Prepared(plan.kernel, plan.checked, made, scalars if is_free else None).launch
        allocations = tuple((tuple(argument.shape), tuple(argument.stride()), argument.dtype) for argument in allocated)
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        entry = Entry(launch, first_tensor.device.index, None if is_free else integers, allocations, context, device.driver)
        self._entries[key if is_free else (*key, *integers)] = entry
        for name in self.declaration.mutated:
            if not tensors[name].is_inference():
                torch.autograd.graph.increment_version((tensors[name],))
        results = allocated[: len(self.declaration.outputs)]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    def repeated(self, given: str, *args: Any) -> Repeated:
        """Launches of an op that writes its arguments, for these tensors at their addresses, but for `given`, whose address
        each launch gives. The caller keeps the tensors alive and counts their versions. Errors as a call has."""
        arguments = {argument.name: arg for argument, arg in zip(self.declaration.arguments, args, strict=True)}
        tensors = {argument.name: arguments[argument.name] for argument in self.declaration.arguments if argument.access}
        where = next(iter(tensors.values())).device
        views = {name: self._view(name, tensor, where) for name, tensor in tensors.items()}
        with torch.cuda.device(where):
            plan, made = self.plan(arguments, views, current_device(), _allocate_nothing, 0)
        if plan is None or made:
            raise refuse(self.__name__, "such a call cannot be repeated", required="a kernel that only writes its arguments")
        return Repeated(plan, given)

    def _view(self, name: str, tensor: Any, where: Any) -> TensorView:
        if tensor.device.type != "cuda" or tensor.device != where:
            required = f"`{where}`, as the first tensor" if where.type == "cuda" else "a CUDA device"
            raise LaunchError(
                "E0914", "the tensor is on another device", kernel=self.__name__, argument=name, given=f"`{tensor.device}`",
                required=required,
            )  # fmt: skip
        return TensorView(tensor.data_ptr(), self._dtype(name, tensor), tuple(tensor.shape), tuple(tensor.stride()))

    def _dtype(self, name: str, tensor: Any) -> str:
        """The name of a tensor's dtype; E0904 if tilec has none."""
        dtype = NAMES.get(tensor.dtype)
        if dtype is None:
            declared = next(argument.dtype for argument in self.declaration.arguments if argument.name == name)
            taken = [declared] if declared in DTYPES else list(NAMES.values())
            required = f"{'one of ' * (len(taken) > 1)}{', '.join(taken)}: `{name}.to({TORCH_DTYPES[taken[0]]})`"
            raise LaunchError(
                "E0904", "wrong element type", kernel=self.__name__, argument=name, given=f"`{tensor.dtype}`", required=required
            )
        return dtype

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._backward is not None and self._backward[1] is not None:
            if self._unsigned:
                named = dict(zip((argument.name for argument in self.declaration.arguments), inputs, strict=True))
                inputs = tuple(all_from_schema(named, self._unsigned).values())
            self._backward[1](ctx, inputs, output)

    def _differentiate(self, ctx: Any, *grads: Any) -> Any:
        if self._backward is None:
            raise refuse(self.__name__, "the op has no gradient", required=f"one, by `{self.__name__}.register_autograd`")
        return self._backward[0](ctx, *grads)


def _launch_nothing(stream: int, pointers: tuple[int, ...], floats: tuple[float, ...]) -> None:
    """The launch of an entry whose grid has no blocks."""


def _allocate_nothing(dtype: str, shape: tuple[int, ...]) -> None:
    """The results of an op that has none."""


def _never(*tensors: Any) -> bool:
    return False


_NO_ENTRY: Final = SimpleNamespace(alike=_never)


def _learn(entry: Entry, tensors: tuple[Any, ...]) -> None:
    """Creates the check of tensors from Dynamo's guards: type, dispatch keys (which reflect modes and tracing), dtype, device,
    extents, strides, and requires_grad. The API is private; if it is missing or has changed, tensors are checked one by one.
    Whether a gradient is recorded is not a property of tensors, so a call asks for that if one of them requires it."""
    entry.alike, entry.free = _never, not any(tensor.requires_grad for tensor in tensors)
    entry.chances -= 1
    with suppress(AttributeError, TypeError):
        entry.alike = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def _recover(error: DriverError, entry: Entry) -> None:
    """Sets the kernel's context in a thread that has not used CUDA and has none. Any other error is raised again."""
    if error.name != NO_CONTEXT:
        raise error
    entry.driver.use_context(entry.context)


def _elsewhere(entry: Entry, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A call for a device other than the current one."""
    with torch.cuda.device(entry.device):
        return call(*args)


def helpers() -> dict[str, Any]:
    """The helpers that `fast_call` uses, by their names there. PyTorch's fast functions are private: if one is missing, a
    public one replaces it, or every call goes through the dispatcher."""

    def private(path: str, otherwise: Any) -> Any:
        value = torch._C
        for name in path.split("."):
            value = getattr(value, name, None)
        return otherwise if value is None else value

    def raw_stream(device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    def increment(tensors: tuple[Any, ...]) -> None:
        torch.autograd.graph.increment_version(tensors)

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    return {
        "type": type, "float": float, "int": int, "bool": bool, "Tensor": torch.Tensor, "Parameter": torch.nn.Parameter,
        "strided": torch.strided,
        "compiling": torch.compiler.is_dynamo_compiling, "grad": torch.is_grad_enabled,
        "dispatched": private("_len_torch_dispatch_stack", lambda: True),
        "tracing": private("_get_tracing_state", lambda: True),
        "transformed": private("_functorch.peek_interpreter_stack", lambda: True),
        "device": private("_cuda_getDevice", torch.cuda.current_device),
        "stream": private("_cuda_getCurrentRawStream", raw_stream),
        "empty": private("_dynamo.guards._empty_strided_cuda", empty),
        "Refused": DriverError, "recover": _recover, "elsewhere": _elsewhere, "learn": _learn,
        "written": private("_increment_version", increment),
    }  # fmt: skip
