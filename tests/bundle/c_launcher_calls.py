"""Calls the functions of a launcher in C and the Python launcher alike, and compares. Run in a process of its own, since the
stub of libcuda stays in it: `python c_launcher_calls.py STUB LAUNCHER BUNDLE NAMES`.

In: a bundle and its launcher as a shared library, and a JSON object of functions by kernel. For each kernel, random calls: most
within the contract, others with one error. Out, as JSON: the number of launches, the count of each code, and differences.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import sys
from collections import Counter
from typing import Any

from tests.runtime.fake_driver import FakeDriver, argument_bytes
from tilec.artifact.records import Manifest
from tilec.ir.types import DTYPES, MAX_DIM
from tilec.runtime import TRUSTED, Device, Kernel, LaunchError, TensorView, open_bundle
from tilec.runtime.tensors import contiguous_strides

CALLS = 1000
TYPES = {
    "f32": ctypes.c_float, "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16, "i8": ctypes.c_int8, "i16": ctypes.c_int16,
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64, "bool": ctypes.c_uint8,
}  # fmt: skip
HIGH = (2**63 - 1, 2**63, 2**63 + 7, 2**64 - 8, 2**64 - 15, 2**64 - 1)
"""Numbers about the ends of 64 bits, which a scalar of u64 takes."""
BYTES = {"pointer": 8, "dim": 4, "stride": 8}


class Stub(ctypes.Structure):
    """`stub` in stub_cuda.c."""

    _fields_ = (
        ("launches", ctypes.c_int), ("loads", ctypes.c_int), ("unloads", ctypes.c_int), ("capability", ctypes.c_int * 2),
        ("shared_limit", ctypes.c_int), ("failing", ctypes.c_char * 64), ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("function", ctypes.c_char * 64), ("dynamic_shared", ctypes.c_int),
        ("sizes", ctypes.c_uint * 32), ("arguments", (ctypes.c_ubyte * 8) * 32),
    )  # fmt: skip


class Caller:
    """One kernel in both launchers."""

    def __init__(self, manifest: Manifest, cubin: bytes, function: Any, kernels: Any, stub: Stub) -> None:
        self.manifest, self.function, self.kernels, self.stub = manifest, function, kernels, stub
        self.driver = FakeDriver()
        self.kernel = Kernel(manifest, cubin, Device(self.driver))
        names = {name for spec in manifest.tensors for expr in (*spec.dims, *(spec.strides or ())) for name in expr.symbols()}
        self.integers = {spec.name for spec in manifest.scalars if spec.dtype[0] in "iu"}
        strides = [slot.name for slot in manifest.abi if slot.kind == "stride"]
        slots = [slot.name for slot in manifest.abi if slot.kind == "dim"]
        dim_names = slots + sorted(names - {*slots, *strides, *self.integers})
        self.dims, self.strides = dim_names, strides
        self.sizes = [BYTES.get(slot.kind) or ctypes.sizeof(TYPES[self.dtype(slot.name)]) for slot in manifest.abi]

    def dtype(self, scalar: str) -> str:
        return next(spec.dtype for spec in self.manifest.scalars if spec.name == scalar)

    def fitting(self, name: str, values: list[int]) -> list[int]:
        """Numbers that fit the C type of a parameter."""
        if name not in self.integers:
            return values
        low, high = DTYPES[self.dtype(name)].integer_range()
        return [value for value in values if low <= value <= high]

    def draw(self, dice: random.Random) -> dict[str, Any]:
        """Arguments of a call: numbers by name, addresses by tensor, and whether value checks are waived."""
        values = {name: dice.choice([1, 2, 3, 8, 16, 64, 100, 4096]) for name in self.dims}
        values |= {name: dice.choice([128, 8192, 1 << 20]) for name in self.strides}
        for spec in self.manifest.scalars:
            is_integer = spec.name in self.integers
            values[spec.name] = dice.choice([1, 2, 5, 100]) if is_integer else True if spec.dtype == "bool" else 0.5
        pointers = {spec.name: (1 + index) << 40 for index, spec in enumerate(self.manifest.tensors)}
        trusted = True
        if dice.random() < 0.5:
            broken = ["pointer", "pointer", "overlap", "overlap", "null", "end", "trust"]
            changed = dice.choice([*self.dims, *self.strides, *self.integers, *broken])
            name = dice.choice(list(pointers))
            if changed == "pointer":
                pointers[name] += dice.choice([1, 2, 8, 16])
            elif changed == "overlap":
                pointers[name] = dice.choice(list(pointers.values())) + dice.choice([0, 16, 256, 1 << 16])
            elif changed == "null":
                pointers[name] = 0
            elif changed == "end":
                pointers[name] = 2**64 - dice.choice([16, 4096])
            elif changed == "trust":
                trusted = False
            else:
                values[changed] = dice.choice(self.fitting(changed, [0, -1, 7, 65536, MAX_DIM, MAX_DIM + 1, 2**31 - 1, *HIGH]))
        return {"values": values, "pointers": pointers, "trusted": trusted}

    def python(self, call: dict[str, Any]) -> tuple[str, Any]:
        """The verdict of the Python launcher, and its launch arguments."""
        values = call["values"]
        arguments: dict[str, Any] = {spec.name: values[spec.name] for spec in self.manifest.scalars}
        for spec in self.manifest.tensors:
            shape = tuple(dim.evaluate(values) for dim in spec.dims)
            strides = contiguous_strides(shape) if spec.strides is None else tuple(one.evaluate(values) for one in spec.strides)
            arguments[spec.name] = TensorView(call["pointers"][spec.name], spec.dtype, shape, strides)
        evidence = {check.tensor: TRUSTED for check in self.manifest.value_checks} if call["trusted"] else {}
        dims = {name: values[name] for name in (*self.dims, *self.strides)}
        try:
            plan = self.kernel.plan(arguments, values=evidence, dims=dims)
        except LaunchError as error:
            return error.code, str(error)
        plan.launch(5)
        launch = self.driver.launches.pop()
        return "", (launch.grid, launch.block, launch.shared, argument_bytes(launch, self.sizes))

    def c(self, call: dict[str, Any]) -> tuple[str, Any]:
        """The same in C."""
        values, stub = call["values"], self.stub
        given: list[Any] = [ctypes.c_void_p(5)]
        given += [ctypes.c_uint64(call["pointers"][spec.name]) for spec in self.manifest.tensors]
        given += [ctypes.c_int64(values[name]) for name in (*self.dims, *self.strides)]
        given += [_scalar(spec.dtype, values[spec.name]) for spec in self.manifest.scalars]
        given += [ctypes.c_int(call["trusted"])] * len({check.tensor for check in self.manifest.value_checks})
        stub.sizes[:] = [*self.sizes, *[0] * (32 - len(self.sizes))]
        before = stub.launches
        status = self.function(self.kernels, *given)
        if status:
            assert stub.launches == before, "launched, and refused"
            return f"E{status:04d}", ""
        assert (stub.launches, stub.stream, stub.function.decode()) == (before + 1, 5, self.manifest.entry)
        sent = [bytes(stub.arguments[index][:size]) for index, size in enumerate(self.sizes)]
        assert list(stub.block[1:]) == [1, 1]
        return "", (tuple(stub.grid), stub.block[0], stub.shared, sent)


def _scalar(dtype: str, value: Any) -> Any:
    if dtype == "f16":
        return ctypes.c_uint16(struct.unpack("<H", struct.pack("<e", value))[0])
    if dtype == "bf16":
        return ctypes.c_uint16(struct.unpack("<I", struct.pack("<f", value))[0] >> 16)
    return TYPES[dtype](value)


def failures(library: Any, stem: str, stub: Stub) -> dict[str, str]:
    """The errors of loading with devices and drivers that it cannot use."""
    load, error = getattr(library, f"{stem}_load"), getattr(library, f"{stem}_error")
    error.restype = ctypes.c_char_p
    found: dict[str, str] = {}

    def attempt(name: str) -> None:
        kernels = ctypes.c_void_p(1)
        status = load(ctypes.byref(kernels))
        assert status and kernels.value is None, name
        found[name] = error().decode()

    for call in (b"cuInit", b"cuModuleLoadData", b"cuModuleGetFunction"):
        stub.failing = call
        attempt(call.decode())
    stub.failing = b""
    stub.capability[:] = [10, 0]
    attempt("capability")
    stub.capability[:] = [9, 0]
    stub.shared_limit = 100
    attempt("shared memory")
    stub.shared_limit = 232448
    assert stub.loads >= stub.unloads
    return found


def main(stub_path: str, launcher: str, bundle_path: str, names: dict[str, str], stem: str) -> dict[str, Any]:
    stub = Stub.in_dll(ctypes.CDLL(stub_path), "stub")
    library = ctypes.CDLL(launcher)
    failed = failures(library, stem, stub)
    loads = stub.loads - stub.unloads
    kernels = ctypes.c_void_p()
    assert getattr(library, f"{stem}_load")(ctypes.byref(kernels)) == 0
    codes: Counter[str] = Counter()
    differences: list[Any] = []
    dice = random.Random(1)
    with open_bundle(bundle_path) as bundle:
        for name, function in names.items():
            one = bundle.kernel(name)
            caller = Caller(one.manifest, bundle.cubin(one), getattr(library, function), kernels, stub)
            for _ in range(CALLS):
                call = caller.draw(dice)
                wanted, found = caller.python(call), caller.c(call)
                codes[found[0] or "launched"] += 1
                if wanted[0] != found[0] or (not wanted[0] and wanted[1] != found[1]):
                    differences.append([name, call, repr(wanted), repr(found)])
    stub.failing = b"cuLaunchKernel"
    getattr(library, f"{stem}_unload")(kernels)
    return {"codes": codes, "differences": differences[:50], "told": failed, "left_loaded": stub.loads - stub.unloads - loads}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4], json.loads(sys.argv[4]), sys.argv[5])))
