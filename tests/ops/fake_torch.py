"""A stub of PyTorch: the part that `tilec.ops.torch_op` uses, on tensors of a fake device.

Tests with it show that ours calls PyTorch as this file models it; `python ci/bench/kernels.py torch_ops` shows on a GPU that
the model is right.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from tilec.runtime import Device, DeviceArray
from tilec.runtime.tensors import contiguous_strides

NAMES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class FakeDevice:
    """A `torch.device`."""

    type: str
    index: int | None = None


def torch_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of a contiguous tensor; an extent of 0 counts as 1."""
    return contiguous_strides(tuple(1 if type(extent) is int and extent == 0 else extent for extent in shape))


class Tensor:
    """A tensor in device memory; on `meta`, without memory."""

    def __init__(self, array: DeviceArray | None, dtype: str, shape: tuple[int, ...], device_of: FakeDevice) -> None:
        self.array, self.dtype, self.shape, self.device = array, dtype, tuple(shape), device_of
        self.requires_grad, self.negated, self.version, self.layout = False, False, 0, "strided"
        self.storage, self.offset = SimpleNamespace(_cdata=id(self)), 0
        self.strides = torch_strides(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def untyped_storage(self) -> SimpleNamespace:
        return self.storage

    def storage_offset(self) -> Any:
        return self.offset

    def is_contiguous(self) -> bool:
        assert self.layout == "strided", "Tensors of type SparseTensorImpl do not have is_contiguous"
        return 0 in self.shape or self.strides == torch_strides(self.shape)

    def get_device(self) -> int:
        return -1 if self.device.index is None else self.device.index

    def data_ptr(self) -> int:
        assert self.array is not None, "a tensor without data"
        return self.array.pointer

    def is_neg(self) -> bool:
        return self.negated

    def is_inference(self) -> bool:
        return False

    def view(self, *shape: Any) -> Tensor:
        """A view of the whole tensor."""
        new_shape = tuple(shape[0]) if isinstance(shape[0], tuple) else shape
        new_shape = (math.prod(self.shape),) if new_shape == (-1,) else new_shape
        assert math.prod(new_shape) == math.prod(self.shape)
        same = Tensor(self.array, self.dtype, new_shape, self.device)
        same.storage, same.offset = self.storage, self.offset
        return same

    def new_empty(self, shape: tuple[int, ...], *, dtype: str) -> Tensor:
        array = None if self.array is None else self.array.device.empty(shape, NAMES[dtype])
        return Tensor(array, dtype, shape, self.device)


class Parameter(Tensor):
    pass


class Guards:
    """Guards on tensors and on the state of PyTorch: whether both are unchanged."""

    def __init__(self, torch: FakeTorch, *tensors: Tensor, dynamic_dims_sizes: None, dynamic_dims_strides: None) -> None:
        self.torch = torch
        self.snapshot_at_start = self.snapshot(tensors)

    def snapshot(self, tensors: tuple[Tensor, ...]) -> list[Any]:
        state = (self.torch.modes,)
        return [
            (
                type(tensor),
                tensor.dtype,
                tensor.shape,
                tensor.strides,
                tensor.device,
                tensor.negated,
                tensor.requires_grad,
                state,
            )
            for tensor in tensors
        ]

    def check(self, *tensors: Tensor) -> bool:
        found = [type(tensor) for tensor in tensors] == [tensor[0] for tensor in self.snapshot_at_start]
        found = (
            found
            and self.snapshot(tensors) == self.snapshot_at_start
            and len({id(tensor) for tensor in tensors}) == len(tensors)
        )
        self.torch.alike += found
        return found


@dataclass
class Registered:
    """A registered operator."""

    schema: str
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)
    fake: Callable[..., Any] | None = None
    autograd: tuple[Any, Any] | None = None
    calls: int = 0
    below: list[None] = field(default_factory=list)

    @property
    def default(self) -> Registered:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        for number in (*args, *kwargs.values()):
            if type(number) is int and not -(2**63) <= number < 2**63:
                raise RuntimeError("Overflow when unpacking long long")  # a schema's integers have 64 bits and a sign
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        if any(arg.device.type == "meta" for arg in tensors):
            assert self.fake is not None
            return self.fake(*args, **kwargs)
        if "Autograd" in self.kernels and not self.below:
            return self.kernels["Autograd"](*args, **kwargs)
        return self.kernels["CUDA"](*args, **kwargs)


class AutogradFunction:
    """`torch.autograd.Function` in eager mode: `apply` records nothing while `forward` runs."""

    torch: FakeTorch

    @classmethod
    def apply(cls, *args: Any) -> Any:
        contexts = cls.torch.contexts
        contexts.append(SimpleNamespace())
        before, cls.torch.grad = cls.torch.grad, False
        try:
            return cls.forward(contexts[-1], *args)  # type: ignore[attr-defined]
        finally:
            cls.torch.grad = before


class FakeTorch(ModuleType):
    """The module. `compiling`, `grad`, `modes` and `current` are PyTorch's state."""

    def __init__(self, device: Device) -> None:
        super().__init__("torch")
        self.compiling, self.grad, self.modes, self.current = False, False, 0, 0
        self.alike = 0
        self.below: list[None] = []
        self.operators: dict[str, Registered] = {}
        self.used: list[Any] = []
        for name in NAMES:
            setattr(self, name, name)
        self.strided = "strided"
        self.Tensor, self.Tag = Tensor, SimpleNamespace(pt2_compliant_tag="pt2")
        self.nn = SimpleNamespace(Parameter=Parameter)
        self.compiler = SimpleNamespace(is_dynamo_compiling=lambda: self.compiling)
        self.is_grad_enabled = lambda: self.grad
        self.contexts: list[SimpleNamespace] = []
        function = type("Function", (AutogradFunction,), {"torch": self})
        self.autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=self._bump), Function=function)
        self.cuda = SimpleNamespace(
            device=self._device, current_device=lambda: self.current,
            current_stream=lambda *_: SimpleNamespace(cuda_stream=7 + self.current),
        )  # fmt: skip
        self._C = SimpleNamespace(
            _len_torch_dispatch_stack=lambda: self.modes, _get_tracing_state=lambda: None,
            _functorch=SimpleNamespace(peek_interpreter_stack=lambda: None), _cuda_getDevice=lambda: self.current,
            _cuda_getCurrentRawStream=lambda index: 7 + index,
            _AutoDispatchBelowAutograd=self._below_autograd,
            _any_requires_grad=lambda *args: any(isinstance(arg, Tensor) and arg.requires_grad for arg in args),
            _dynamo=SimpleNamespace(guards=SimpleNamespace(TensorGuards=partial(Guards, self))),
        )  # fmt: skip
        self.library = SimpleNamespace(
            Library=self._library, register_fake=self._register_fake, register_autograd=self._register_autograd
        )
        self.ops = SimpleNamespace()
        self._on = device
        self.randn = self.ones = self.empty

    def empty(self, *shape: int, dtype: str, device: str = "cuda") -> Tensor:
        """Also stands in for `randn` and `ones`, since nothing is computed."""
        array = self._on.empty(shape, NAMES[dtype]) if device == "cuda" else None
        return Tensor(array, dtype, shape, FakeDevice(device, 0 if device == "cuda" else None))

    @contextlib.contextmanager
    def _device(self, device_of: Any) -> Iterator[None]:
        index = device_of if isinstance(device_of, int) else device_of.index
        self.used.append(index)
        before, self.current = self.current, index
        yield
        self.current = before

    @contextlib.contextmanager
    def _below_autograd(self) -> Iterator[None]:
        self.below.append(None)
        yield
        self.below.pop()

    def empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
        assert strides == torch_strides(shape)
        return self.empty(*shape, dtype=dtype, device=device)

    def _bump(self, tensors: tuple[Tensor]) -> None:
        for tensor in tensors:
            tensor.version += 1

    def _library(self, namespace: str, kind: str) -> Any:
        assert kind == "FRAGMENT"

        def define(schema: str, *, tags: tuple[str, ...]) -> None:
            name = schema.partition("(")[0]
            qualified = f"{namespace}::{name}"
            assert qualified not in self.operators, f"{qualified} is defined twice"
            assert tags == ("pt2",)
            self.operators[qualified] = Registered(schema, below=self.below)
            op_namespace = vars(self.ops).setdefault(namespace, SimpleNamespace())
            setattr(op_namespace, name, self.operators[qualified])

        def implement(name: str, function: Callable[..., Any], key: str) -> None:
            self.operators[f"{namespace}::{name}"].kernels[key] = function

        return SimpleNamespace(define=define, impl=implement)

    def _register_fake(self, name: str, function: Callable[..., Any], *, lib: Any) -> None:
        self.operators[name].fake = function

    def _register_autograd(self, name: str, backward: Any, *, setup_context: Any, lib: Any) -> None:
        self.operators[name].autograd = (backward, setup_context)
