"""An independent checker of accepted launches, with Python's integers. In: the JSON of a manifest, the launch arguments, and
the driver's call. Out: the first clause that is not satisfied.

It reads the manifest as plain JSON and shares no code with the launcher: expressions, strides, spans and argument bytes are
computed anew. It enumerates the elements of small written tensors to check that no two share memory.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BYTES = {
    "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4,
    "bool": 1,
}  # fmt: skip
RANGES = {name: (-(2 ** (8 * BYTES[name] - 1)), 2 ** (8 * BYTES[name] - 1) - 1) for name in ("i8", "i16", "i32", "i64")}
RANGES |= {name: (0, 2 ** (8 * BYTES[name]) - 1) for name in ("u8", "u16", "u32")}
FORMATS = {"i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u8": "<B", "u16": "<H", "u32": "<I", "bool": "<?", "f32": "<f"}
LARGEST_DIM = 2**31 - 2**16
FEW = 4096


@dataclass
class Given:
    """A tensor argument: address, dtype, shape, strides in elements, and whether it is read-only."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool = False


@dataclass
class Reached:
    """The driver's call; `arguments` are 8 bytes for each slot of the calling convention, `maps` the tensor maps that it was
    asked to encode."""

    grid: tuple[int, int, int]
    block: int
    shared: int
    arguments: list[bytes]
    env: Mapping[str, int]
    maps: list[Any] = field(default_factory=list)


def value(expression: Any, env: Mapping[str, int]) -> int:
    """The value of an expression of a manifest."""
    if isinstance(expression, str):
        return env[expression]
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    a = value(left, env)
    if operator == "and":
        return int(a != 0 and value(right, env) != 0)
    if operator == "or":
        return int(a != 0 or value(right, env) != 0)
    b = value(right, env)
    if operator in ("//", "%"):
        quotient, rest = divmod(a, b)
        return quotient if operator == "//" else rest
    arithmetic = {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b)}
    compared = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    return arithmetic[operator] if operator in arithmetic else int(compared[operator])


def span(tensor: Given) -> tuple[int, int]:
    """First byte and one past the last."""
    if 0 in tensor.shape:
        return tensor.pointer, tensor.pointer
    ends = [(extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.strides, strict=True)]
    size = BYTES[tensor.dtype]
    first = tensor.pointer + sum(end for end in ends if end < 0) * size
    return first, tensor.pointer + (sum(end for end in ends if end > 0) + 1) * size


def complaint(
    manifest: dict[str, Any], tensors: Mapping[str, Given], scalars: Mapping[str, Any], stored: Mapping[str, list[int]],
    reached: Reached,
) -> str:  # fmt: skip
    """The first clause that is not satisfied, or None if the contract allows the launch."""
    env = reached.env
    if {one["name"] for one in manifest["tensors"]} != tensors.keys() or {
        one["name"] for one in manifest["scalars"]
    } != scalars.keys():
        return "names"
    for spec in manifest["tensors"]:
        found = _tensor(spec, tensors[spec["name"]], env)
        if found:
            return f"`{spec['name']}`: {found}"
    for spec in manifest["scalars"]:
        found = _scalar(spec, scalars[spec["name"]], env)
        if found:
            return f"`{spec['name']}`: {found}"
    for check in manifest["launch_checks"]:
        if not value(check["condition"], env):
            return f"launch check {check['condition']!r:.200}"
    for check in manifest["value_checks"]:
        found_values = stored.get(check["tensor"], [0])  # assumed of a tensor without described values
        low, high = value(check["low"], env), value(check["high"], env)
        if not all(low <= one < high for one in found_values):
            return "stored values out of range"
        if check["distinct"] and len(set(found_values)) != len(found_values):
            return "stored values that are equal"
    for left, right in manifest["no_alias"]:
        (a, b), (c, d) = span(tensors[left]), span(tensors[right])
        if max(a, c) < min(b, d):
            return f"`{left}` overlaps `{right}`"
    return _launch(manifest, tensors, scalars, reached)


def _tensor(spec: dict[str, Any], given: Given, env: Mapping[str, int]) -> str:
    if given.dtype != spec["dtype"] or len(given.shape) != len(spec["dims"]) or len(given.strides) != len(given.shape):
        return "dtype or rank"
    if given.read_only and spec["access"] != "in":
        return "read-only, and written"
    for expression, extent in zip(spec["dims"], given.shape, strict=True):
        if value(expression, env) != extent or not 1 <= extent <= LARGEST_DIM:
            return "extent"
    if given.pointer <= 0 or given.pointer % spec["align"]:
        return "address"
    first, end = span(given)
    if first < 0 or end > 2**64 or end - first >= 2**63:
        return "memory outside the addresses there are"
    wanted = 1
    if spec["strides"] is None:
        for extent, stride in zip(reversed(given.shape), reversed(given.strides), strict=True):
            if extent != 1 and stride != wanted:
                return "not contiguous"
            wanted *= extent
        return ""
    for expression, extent, stride in zip(spec["strides"], given.shape, given.strides, strict=True):
        if extent != 1 and value(expression, env) != stride:
            return "stride"
    return "" if spec["access"] == "in" or _apart(given) else "elements share memory"


def _apart(given: Given) -> bool:
    """Whether no two elements share an address; checked only for small tensors."""
    count = 1
    for extent in given.shape:
        count *= extent
    if count > FEW:
        return True
    steps = [[index * stride for index in range(extent)] for extent, stride in zip(given.shape, given.strides, strict=True)]
    offsets = [sum(parts) for parts in itertools.product(*steps)]
    return len(set(offsets)) == len(offsets)


def _scalar(spec: dict[str, Any], given: Any, env: Mapping[str, int]) -> str:
    dtype = spec["dtype"]
    if dtype in ("f32", "f16", "bf16"):
        return "" if isinstance(given, (int, float)) and not isinstance(given, bool) else "no number"
    if dtype == "bool":
        return "" if isinstance(given, bool) and env[spec["name"]] == given else "no bool"
    low, high = RANGES[dtype]
    fits = isinstance(given, int) and not isinstance(given, bool) and low <= given <= high
    return "" if fits and env[spec["name"]] == given else "does not fit"


def _launch(manifest: dict[str, Any], tensors: Mapping[str, Given], scalars: Mapping[str, Any], reached: Reached) -> str:
    grid = [value(axis, reached.env) for axis in manifest["grid"]]
    grid += [1] * (3 - len(grid))
    if reached.grid != tuple(grid) or not all(1 <= n <= most for n, most in zip(grid, (2**31 - 1, 65535, 65535), strict=True)):
        return "grid"
    if (reached.block, reached.shared) != (manifest["block"], manifest["resources"]["dynamic_shared_bytes"]):
        return "block or shared memory"
    if reached.shared + manifest["resources"]["static_shared_bytes"] > 232448 or manifest["cluster"] != 1:
        return "more shared memory than there is, or a cluster"
    dtypes = {one["name"]: one["dtype"] for one in manifest["scalars"]}
    for slot, found in zip(manifest["abi"], reached.arguments, strict=True):
        kind, name = slot["kind"], slot["name"]
        if kind == "pointer":
            wanted = struct.pack("<Q", tensors[name].pointer)
        elif kind in ("dim", "stride"):
            wanted = struct.pack("<i" if kind == "dim" else "<q", reached.env[name])
        elif kind == "tensor_map":
            if not any(_is_of(request, tensors[name]) for request in reached.maps):
                return f"no map is of `{name}`"
            continue
        else:
            wanted = scalar_bytes(dtypes[name], scalars[name])
        if found[: len(wanted)] != wanted:
            return f"the argument `{name}` is {found.hex()}, not {wanted.hex()}"
    return ""


def _is_of(request: Any, given: Given) -> bool:
    """Whether a map covers exactly a whole tensor."""
    if (request.pointer, request.dims[::-1]) != (given.pointer, given.shape) or len(request.box) != len(given.shape):
        return False
    steps = zip(request.strides[::-1], given.strides[:-1], given.shape[:-1], strict=True)
    return all(extent == 1 or step == stride * BYTES[given.dtype] for step, stride, extent in steps)


def scalar_bytes(dtype: str, given: Any) -> bytes:
    """A scalar as a kernel reads it; floats are rounded to nearest even."""
    if dtype == "f32":
        with np.errstate(over="ignore"):
            return np.float32(given).tobytes()
    if dtype == "f16":
        return np.float16(given).tobytes()
    if dtype == "bf16":
        import ml_dtypes

        return np.float32(given).astype(ml_dtypes.bfloat16).tobytes()
    return struct.pack(FORMATS[dtype], given)
