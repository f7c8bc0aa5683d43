"""Manifests and device tensors for the launcher's tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fake_driver import FakeDriver

from tilec.artifact.records import AbiSlot, LaunchCheck, Manifest, Resources, ScalarSpec, TensorSpec, ValueCheck
from tilec.ir.expr import Expr, binary, cdiv, const, sym
from tilec.runtime import Device, Kernel, TensorView
from tilec.runtime.tensors import contiguous_strides

T, H, V = sym("T"), sym("H"), sym("V")

SCHEDULE = {
    "roles": [{"name": "all", "warps": 4, "registers": None}], "pipelines": [], "blocks": None, "persistent": False,
    "cluster": 1, "order": "grid", "early": None, "next": "after", "store": "threads", "vector": 16,
}  # fmt: skip


def tensor(
    name: str, access: str, dtype: str, *dims: Expr, strides: tuple[Expr, ...] | None = None, align: int = 16
) -> TensorSpec:
    return TensorSpec(name, access, dtype, dims, strides, align)


def manifest(
    tensors: tuple[TensorSpec, ...],
    scalars: tuple[ScalarSpec, ...] = (),
    *,
    grid: tuple[Expr, ...] = (cdiv(T, const(4)),),
    dims: tuple[str, ...] = ("T",),
    strides: tuple[str, ...] = (),
    **changes: Any,
) -> Manifest:
    """A manifest with the compiler's calling convention: pointers, dims, strides, scalars."""
    abi = [AbiSlot("pointer", spec.name) for spec in tensors]
    abi += [AbiSlot("dim", name) for name in dims] + [AbiSlot("stride", name) for name in strides]
    abi += [AbiSlot("scalar", spec.name) for spec in scalars]
    base = Manifest(
        kernel="demo", entry="demo", arch="sm_90a", constants={}, tensors=tensors, scalars=scalars, abi=tuple(abi),
        grid=grid, block=128, cluster=1, schedule=SCHEDULE, dependent_launch=True,
        launch_checks=(), value_checks=(), no_alias=(),
        resources=Resources(32, 0, 0, 0, 0), obligations=(), unsafe=(), digests={}, toolchain={},
    )  # fmt: skip
    return replace(base, **changes)


def embedding_like(**changes: Any) -> Manifest:
    """`out[T, H] = table[ids[T]]` scaled: every kind of clause in one contract."""
    settings: dict[str, Any] = {
        "dims": ("T", "H", "V"),
        "launch_checks": (LaunchCheck(binary("==", binary("%", H, const(8)), const(0)), "H % 8 == 0"),),
        "value_checks": (ValueCheck("ids", const(0), V, False),),
        "no_alias": (("out", "table"), ("out", "ids")),
    }
    tensors = (
        tensor("ids", "in", "i32", T),
        tensor("table", "in", "bf16", V, H),
        tensor("out", "out", "bf16", T, H),
    )
    return manifest(tensors, (ScalarSpec("scale", "f32"), ScalarSpec("pos", "i32")), **(settings | changes))


def loaded(launched_manifest: Manifest, driver: FakeDriver | None = None) -> Kernel:
    return Kernel(launched_manifest, b"cubin", Device(driver or FakeDriver()))


def view(pointer: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorView:
    return TensorView(pointer, dtype, shape, contiguous_strides(shape) if strides is None else strides)


@dataclass
class InterfaceTensor:
    """A tensor of another framework: an object with the CUDA array interface."""

    interface: dict[str, Any]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface
