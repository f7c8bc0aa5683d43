"""Reads the manifest of an artifact from untrusted JSON.

In: the result of a JSON parser. Out: a `Manifest`; ValueError names the first invalid field. Every type and every bound is
checked before anything is used.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tilec.artifact.records import (
    ACCESSES,
    MANIFEST_FORMAT,
    OPTIONAL,
    AbiSlot,
    LaunchCheck,
    Manifest,
    Obligation,
    Resources,
    ScalarSpec,
    TensorMapSpec,
    TensorSpec,
    ValueCheck,
    ValuePromise,
)
from tilec.ir.expr import Expr, from_json
from tilec.ir.facts.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, MAP_ELEMENTS, MAP_SWIZZLES, MAX_BOX, MAX_MAP_RANK
from tilec.ir.types import DTYPES
from tilec.untrusted.limits import MAX_NAME

MAX_ITEMS: Final = 100_000
"""Maximum length of any list of a manifest."""
MAX_PARAMETERS: Final = 1024
MAX_SLOTS: Final = 4095
"""Maximum argument slots: 8 bytes each, and a kernel accepts 32,764 bytes (PTX ISA, "Kernel Function Parameters")."""
MAX_RANK: Final = 64
MAX_SCHEDULED: Final = 64
"""Maximum number of roles, pipelines and stages of a schedule."""


def manifest_from_json(data: Any) -> Manifest:
    """Inverse of `to_json` for a manifest. Trusts nothing: ValueError names the first invalid field."""
    try:
        return _manifest(_record(data, Manifest, "manifest"))
    except RecursionError:
        raise ValueError("the manifest is nested too deep") from None


def obligations_from_json(data: Any) -> tuple[Obligation, ...]:
    """The obligations of a manifest from its list of them; ValueError names the first invalid field."""
    return tuple(_obligation(item, f"obligations[{i}]") for i, item in enumerate(_list(data, "obligations")))


def _manifest(record: dict[str, Any]) -> Manifest:
    if record["format"] is True or record["format"] != MANIFEST_FORMAT:
        raise ValueError(f"manifest: format is not {MANIFEST_FORMAT}; what another version of tilec made is to be built again")
    tensors = tuple(
        _tensor(item, f"tensors[{i}]") for i, item in enumerate(_list(record["tensors"], "tensors", MAX_PARAMETERS))
    )
    scalars = tuple(
        _scalar(item, f"scalars[{i}]") for i, item in enumerate(_list(record["scalars"], "scalars", MAX_PARAMETERS))
    )
    names = [spec.name for spec in (*tensors, *scalars)]
    if len(set(names)) != len(names):
        raise ValueError("two parameters have the same name")
    by_kind = {"pointer": {spec.name for spec in tensors}, "scalar": {spec.name for spec in scalars}}
    abi = tuple(_slot(item, by_kind, f"abi[{i}]") for i, item in enumerate(_list(record["abi"], "abi", MAX_SLOTS)))
    maps = tuple(
        _tensor_map(item, {spec.name: spec for spec in tensors}, f"tensor_maps[{i}]")
        for i, item in enumerate(_list(record["tensor_maps"], "tensor_maps", MAX_PARAMETERS))
    )
    if [slot.name for slot in abi if slot.kind == "tensor_map"] != [spec.tensor for spec in maps]:
        raise ValueError("tensor_maps: not those of the calling convention")
    if 8 * len(abi) + (MAP_BYTES + MAP_ALIGNMENT) * len(maps) > 8 * MAX_SLOTS:
        raise ValueError("tensor_maps: too many for the calling convention")
    grid = _expressions(record["grid"], "grid")
    if not 1 <= len(grid) <= 3:
        raise ValueError("grid: one to three axes")
    return Manifest(
        kernel=_name(record["kernel"], "kernel"),
        entry=_name(record["entry"], "entry"),
        arch=_text(record["arch"], "arch"),
        constants=_constants(record["constants"]),
        tensors=tensors,
        scalars=scalars,
        abi=abi,
        tensor_maps=maps,
        grid=grid,
        block=_integer(record["block"], "block", 1, 1024),
        cluster=_integer(record["cluster"], "cluster", 1, 16),
        schedule=_schedule(record["schedule"], record["block"], record["cluster"]),
        dependent_launch=_flag(record["dependent_launch"], "dependent_launch"),
        launch_checks=tuple(
            _launch_check(item, f"launch_checks[{i}]") for i, item in enumerate(_list(record["launch_checks"], "launch_checks"))
        ),
        value_checks=tuple(
            _value_check(item, tensors, f"value_checks[{i}]")
            for i, item in enumerate(_list(record["value_checks"], "value_checks"))
        ),
        promises=tuple(
            _promise(item, tensors, f"promises[{i}]") for i, item in enumerate(_list(record.get("promises", []), "promises"))
        ),
        no_alias=tuple(_pair(item, by_kind["pointer"]) for item in _list(record["no_alias"], "no_alias")),
        resources=_resources(record["resources"]),
        obligations=obligations_from_json(record["obligations"]),
        unsafe=_texts(record["unsafe"], "unsafe"),
        digests=_text_map(record["digests"], "digests"),
        toolchain=_text_map(record["toolchain"], "toolchain"),
    )


def _record(data: Any, kind: type[Any], location: str) -> dict[str, Any]:
    wanted = list(kind.__dataclass_fields__)
    if not isinstance(data, dict):
        raise ValueError(f"{location}: not an object")
    record: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
    for name in wanted:
        if name not in record and name not in OPTIONAL.get(kind, ()):
            raise ValueError(f"{location}: `{name}` is missing")
    for name in record:
        if name not in wanted:
            raise ValueError(f"{location}: unknown field {name!r:.80}")
    return record


def _list(data: Any, location: str, most: int = MAX_ITEMS) -> list[Any]:
    if not isinstance(data, list) or len(data) > most:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"{location}: not a list of at most {most} items")
    return data  # pyright: ignore[reportUnknownVariableType]


def _text(data: Any, location: str) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{location}: not a string")
    return data


def _name(data: Any, location: str) -> str:
    if not (isinstance(data, str) and len(data) <= MAX_NAME and data.isidentifier()):
        raise ValueError(f"{location}: not a name")
    return data


def _integer(data: Any, location: str, low: int, high: int) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or not low <= data <= high:
        raise ValueError(f"{location}: not an integer from {low} to {high}")
    return data


def _flag(data: Any, location: str) -> bool:
    if not isinstance(data, bool):
        raise ValueError(f"{location}: not true or false")
    return data


def _texts(data: Any, location: str) -> tuple[str, ...]:
    return tuple(_text(item, location) for item in _list(data, location))


def _text_map(data: Any, location: str) -> dict[str, str]:
    if not isinstance(data, dict):
        raise ValueError(f"{location}: not an object")
    items: dict[Any, Any] = data  # pyright: ignore[reportUnknownVariableType]
    return {_text(key, location): _text(value, location) for key, value in items.items()}


def _schedule(data: Any, block: int, cluster: int) -> dict[str, Any]:
    """The schedule; it must match the block and cluster that are launched."""
    names = ("roles", "pipelines", "blocks", "persistent", "cluster", "order", "early", "next", "store", "vector")
    record = _object(data, "schedule", names)
    warps = 0
    for item in _list(record["roles"], "schedule.roles", MAX_SCHEDULED):
        role = _object(item, "schedule.roles", ("name", "warps", "registers"))
        _name(role["name"], "schedule.roles.name")
        warps += _integer(role["warps"], "schedule.roles.warps", 1, 32)
        if role["registers"] is not None:
            _integer(role["registers"], "schedule.roles.registers", 0, 256)
    for item in _list(record["pipelines"], "schedule.pipelines", MAX_SCHEDULED):
        loop = _object(item, "schedule.pipelines", ("stages", "copy", "mma"))
        _integer(loop["stages"], "schedule.pipelines.stages", 1, MAX_SCHEDULED)
        _name(loop["copy"], "schedule.pipelines.copy")
        _name(loop["mma"], "schedule.pipelines.mma")
    if record["blocks"] is not None:
        _integer(record["blocks"], "schedule.blocks", 1, 32)
    _flag(record["persistent"], "schedule.persistent")
    _name(record["order"], "schedule.order")
    if record["early"] is not None:
        _integer(record["early"], "schedule.early", 0, 1 << 16)
    _name(record["next"], "schedule.next")
    _name(record["store"], "schedule.store")
    _integer(record["vector"], "schedule.vector", 1, 1 << 10)
    if 32 * warps != block or _integer(record["cluster"], "schedule.cluster", 1, 16) != cluster:
        raise ValueError(f"schedule: {warps} warps in clusters of {record['cluster']} are not the block of {block} threads")
    return record


def _object(data: Any, location: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict) or sorted(data, key=str) != sorted(names):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"{location}: not an object of {', '.join(names)}")
    return data  # pyright: ignore[reportUnknownVariableType]


def _constants(data: Any) -> dict[str, int | float | bool | str]:
    if not isinstance(data, dict):
        raise ValueError("constants: not an object")
    items: dict[Any, Any] = data  # pyright: ignore[reportUnknownVariableType]
    for name, value in items.items():
        _name(name, "constants")
        if not isinstance(value, (int, float, bool, str)):
            raise ValueError(f"constants: `{name}` is not a number, bool or string")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"constants: `{name}` is not finite")
    return items


def _expression(data: Any, location: str) -> Expr:
    try:
        return from_json(data)
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None


def _expressions(data: Any, location: str) -> tuple[Expr, ...]:
    return tuple(_expression(item, location) for item in _list(data, location, MAX_RANK))


def _dtype(data: Any, location: str) -> str:
    if not isinstance(data, str) or data not in DTYPES:
        raise ValueError(f"{location}: not a dtype")
    return data


def _tensor(data: Any, location: str) -> TensorSpec:
    record = _record(data, TensorSpec, location)
    if not isinstance(record["access"], str) or record["access"] not in ACCESSES:
        raise ValueError(f"{location}: access is not one of {', '.join(ACCESSES)}")
    dims = _expressions(record["dims"], f"{location}.dims")
    strides = None if record["strides"] is None else _expressions(record["strides"], f"{location}.strides")
    if strides is not None and len(strides) != len(dims):
        raise ValueError(f"{location}: {len(strides)} strides for {len(dims)} dims")
    align = _integer(record["align"], f"{location}.align", 1, 1 << 20)
    if align & (align - 1):
        raise ValueError(f"{location}.align: not a power of two")
    if _flag(record["resident"], f"{location}.resident") and record["access"] not in ("in", "inout"):
        raise ValueError(f"{location}: resident, and holds nothing before the launch")
    return TensorSpec(
        _name(record["name"], f"{location}.name"),
        record["access"],
        _dtype(record["dtype"], f"{location}.dtype"),
        dims,
        strides,
        align,
        record["resident"],
        None if record["row"] is None else _integer(record["row"], f"{location}.row", 0, 2),
    )


def _scalar(data: Any, location: str) -> ScalarSpec:
    record = _record(data, ScalarSpec, location)
    dtype = _dtype(record["dtype"], f"{location}.dtype")
    if DTYPES[dtype].c is None:
        raise ValueError(f"{location}: a scalar of `{dtype}` has no calling convention")
    return ScalarSpec(_name(record["name"], f"{location}.name"), dtype)


def _slot(data: Any, by_kind: dict[str, set[str]], location: str) -> AbiSlot:
    record = _record(data, AbiSlot, location)
    kind, name = record["kind"], _name(record["name"], f"{location}.name")
    if kind not in ("pointer", "dim", "stride", "scalar", "tensor_map"):
        raise ValueError(f"{location}: unknown kind {kind!r:.80}")
    if kind == "tensor_map":
        return AbiSlot(kind, name)  # checked against the maps by `_manifest`
    if kind in by_kind and name not in by_kind[kind]:
        raise ValueError(f"{location}: no parameter `{name}`")
    if kind not in by_kind and any(name in known for known in by_kind.values()):
        raise ValueError(
            f"{location}: `{name}` is a parameter, not a {kind}"
        )  # a parameter may have any value, a slot few bits
    return AbiSlot(kind, name)


def _tensor_map(data: Any, tensors: dict[str, TensorSpec], location: str) -> TensorMapSpec:
    record = _record(data, TensorMapSpec, location)
    tensor = tensors.get(_name(record["tensor"], f"{location}.tensor"))
    if tensor is None or tensor.access not in ("in", "out") or tensor.dtype not in MAP_ELEMENTS:
        raise ValueError(f"{location}: no tensor `{record['tensor']}` that is `In` or `Out` and that a map can be of")
    box = _list(record["box"], f"{location}.box", MAX_MAP_RANK)
    extents = tuple(_integer(extent, f"{location}.box", 1, MAX_BOX) for extent in box)
    if not 2 <= len(extents) == len(tensor.dims):
        raise ValueError(f"{location}.box: {len(extents)} extents for a tensor of rank {len(tensor.dims)}")
    row_bytes = extents[-1] * DTYPES[tensor.dtype].bytes
    if record["swizzle"] not in MAP_SWIZZLES or _integer(record["swizzle"], f"{location}.swizzle", 1, 128) != row_bytes:
        raise ValueError(f"{location}.swizzle: not the {row_bytes} bytes of a box's row, or no swizzle")
    return TensorMapSpec(tensor.name, extents, row_bytes)


def _launch_check(data: Any, location: str) -> LaunchCheck:
    record = _record(data, LaunchCheck, location)
    return LaunchCheck(_expression(record["condition"], location), _text(record["text"], location))


def _value_check(data: Any, tensors: tuple[TensorSpec, ...], location: str) -> ValueCheck:
    record = _record(data, ValueCheck, location)
    name = _name(record["tensor"], f"{location}.tensor")
    tensor = next((spec for spec in tensors if spec.name == name), None)
    if tensor is None:
        raise ValueError(f"{location}: no tensor `{record['tensor']}`")
    flags = _flags(record, ("distinct", "sorted", "ends", "distinct_in_rows"), location)
    _check_rows(tensor, flags, location)
    return ValueCheck(record["tensor"], _expression(record["low"], location), _expression(record["high"], location), **flags)


def _promise(data: Any, tensors: tuple[TensorSpec, ...], location: str) -> ValuePromise:
    record = _record(data, ValuePromise, location)
    specs = {spec.name: spec for spec in tensors}
    tensor = specs.get(_name(record["tensor"], f"{location}.tensor"))
    if tensor is None or tensor.access not in ("out", "inout"):
        raise ValueError(f"{location}: no tensor `{record['tensor']}` that is written")
    above = _texts(record.get("above", []), f"{location}.above")
    for name in above:
        if name not in specs or specs[name].access not in ("in", "inout") or specs[name].dims != tensor.dims:
            raise ValueError(f"{location}.above: no tensor {name!r:.80} that is read and has the same extents")
    flags = _flags(record, ("distinct", "sorted", "distinct_in_rows"), location)
    _check_rows(tensor, flags, location)
    return ValuePromise(
        tensor.name, _expression(record["low"], location), _expression(record["high"], location), above, **flags
    )  # fmt: skip


def _flags(record: dict[str, Any], names: tuple[str, ...], location: str) -> dict[str, bool]:
    """Fields that default to false."""
    found = {name: record.get(name, False) for name in names}
    for name, value in found.items():
        if not isinstance(value, bool):
            raise ValueError(f"{location}.{name}: not a bool")
    return found


def _check_rows(tensor: TensorSpec, flags: dict[str, bool], location: str) -> None:
    if flags["distinct_in_rows"] and len(tensor.dims) < 2:
        raise ValueError(f"{location}.distinct_in_rows: `{tensor.name}` has fewer than two axes")


def _pair(data: Any, tensors: set[str]) -> tuple[str, str]:
    pair = _list(data, "no_alias")
    if len(pair) != 2 or not all(isinstance(name, str) and name in tensors for name in pair):
        raise ValueError("no_alias: not a pair of tensors")
    return pair[0], pair[1]


def _resources(data: Any) -> Resources:
    record = _record(data, Resources, "resources")
    return Resources(**{name: _integer(value, f"resources.{name}", 0, 1 << 30) for name, value in record.items()})


def _obligation(data: Any, location: str) -> Obligation:
    record = _record(data, Obligation, location)
    texts = {name: _text(record[name], f"{location}.{name}") for name in ("property", "subject", "location", "rung")}
    return Obligation(
        **texts, facts=_texts(record["facts"], f"{location}.facts"), sets=_texts(record["sets"], f"{location}.sets")
    )
