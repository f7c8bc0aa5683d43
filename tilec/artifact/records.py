"""The compiler's output for the runtime: a CUBIN, and the manifest with its launch parameters, contract and proofs.

Created by the pipeline, stored by the cache, packed into bundles, enforced by the launcher. Pure data, no code: `to_json`
converts it to JSON, which `tilec.artifact.manifest_reader` reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tilec.ir.expr import Expr

if TYPE_CHECKING:
    from tilec.ir.core import Function, Promise, ValueFact

MANIFEST_FORMAT: Final = 7
OF_RANKS: Final = ("peer", "signal")
"""Accesses of what several ranks share. A launch of a kernel that has such tensors waits for one of the same kernel in each
other rank."""
ACCESSES: Final = ("in", "out", "inout", "scratch", "atomic", *OF_RANKS)
PROOF_FIELDS: Final = ("obligations", "launch_checks", "value_checks", "no_alias", "promises", "unsafe")
"""Fields of a manifest that make up the product `proofs`; those of `OPTIONAL` are left out if they are empty."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor parameter. `access` is in, out, inout, scratch, atomic, or of several ranks peer or signal;
    `strides` None means row-major contiguous; dims and strides (elements) are expressions over the launch values; `align` is in
    bytes. `resident`: the kernel may read it before earlier kernels are complete, so no kernel that the launch overlaps may
    write it. `row`: the grid axis on which the block index is the coordinate on the tensor's first axis in every access; None
    if there is none."""

    name: str
    access: str
    dtype: str
    dims: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None
    align: int
    resident: bool = False
    row: int | None = None


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A scalar parameter; `dtype` by name."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class AbiSlot:
    """One kernel argument in order: `kind` pointer (u64), dim (i32), stride (i64), scalar (its dtype) or tensor_map (128 bytes,
    aligned to 64). A tensor_map slot is the next of the manifest's `tensor_maps`, named after its tensor."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A tensor map that the launcher encodes for a whole tensor parameter. `box`: elements of a box on each axis of the tensor,
    outermost first; `swizzle`: bytes of a box's row, within which 16-byte chunks are permuted. Elements outside the tensor read
    as zero."""

    tensor: str
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """A predicate over launch values that the launcher evaluates; `text` is shown if it is false."""

    condition: Expr
    text: str


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """Every integer stored in `tensor` satisfies `low <= v < high`. With `distinct`, no two are equal; with `distinct_in_rows`,
    no two of one row (along the last axis); with `sorted`, they are nondecreasing; with `ends`, the first is `low` and the last
    `high - 1`. A tensor with `sorted` or `ends` has one axis. Records omit all but `distinct` if they are false."""

    tensor: str
    low: Expr
    high: Expr
    distinct: bool
    sorted: bool = False
    ends: bool = False
    distinct_in_rows: bool = False

    @property
    def words(self) -> str:
        """The properties beyond the range, as text to append to it; empty if there are none."""
        properties = {
            "all distinct": self.distinct, "distinct in each row": self.distinct_in_rows,
            "none below the one before": self.sorted, "both ends reached": self.ends,
        }  # fmt: skip
        return "".join(f", {text}" for text, is_set in properties.items() if is_set)


@dataclass(frozen=True, slots=True)
class ValuePromise:
    """Every integer that a launch leaves in `tensor`, minus the previous values of the tensors `above` at the same index,
    satisfies `low <= v < high`. With `distinct`, no two are equal; with `distinct_in_rows`, no two of one row; with `sorted`,
    they are nondecreasing. Records omit `above` and these three if they are empty or false."""

    tensor: str
    low: Expr
    high: Expr
    above: tuple[str, ...] = ()
    distinct: bool = False
    sorted: bool = False
    distinct_in_rows: bool = False

    def __str__(self) -> str:
        properties = {
            "all distinct": self.distinct, "distinct in each row": self.distinct_in_rows,
            "none below the one before": self.sorted,
        }  # fmt: skip
        above = f" - {' - '.join(f'{name} before' for name in self.above)}" if self.above else ""
        suffix = "".join(f", {text}" for text, is_set in properties.items() if is_set)
        return f"{self.low} <= values of {self.tensor}{above} < {self.high}{suffix}"


@dataclass(frozen=True, slots=True)
class Resources:
    """Per-thread registers, spill bytes (stores + loads), stack bytes; per-block static and dynamic shared memory bytes."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Obligation:
    """One proven fact. `property` is bounds, race, coverage, order, wrap, divisor or values; `rung` is static, interval, set,
    launch, value or unsafe; `facts` are the texts of the preconditions and value facts the proof used; `sets` the isl sets."""

    property: str
    subject: str
    location: str
    rung: str
    facts: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a launcher needs to know about one CUBIN, and the record of its proofs. `dependent_launch`: the kernel itself
    waits for earlier kernels (programmatic dependent launch), so it may be launched while they run. `schedule` is its schedule,
    as `tilec.target.schedule` writes it. A launch uses one part of it: with `persistent`, only as many blocks run as the device
    holds at once, `blocks` per multiprocessor (default 1), and each processes several tiles of the grid."""

    kernel: str
    entry: str
    arch: str
    constants: dict[str, int | float | bool | str]
    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    abi: tuple[AbiSlot, ...]
    grid: tuple[Expr, ...]
    block: int
    cluster: int
    dependent_launch: bool
    launch_checks: tuple[LaunchCheck, ...]
    value_checks: tuple[ValueCheck, ...]
    no_alias: tuple[tuple[str, str], ...]
    resources: Resources
    obligations: tuple[Obligation, ...]
    unsafe: tuple[str, ...]
    digests: dict[str, str]
    toolchain: dict[str, str]
    schedule: dict[str, Any] = field(default_factory=dict[str, Any])
    tensor_maps: tuple[TensorMapSpec, ...] = ()
    promises: tuple[ValuePromise, ...] = ()
    format: int = MANIFEST_FORMAT


def parameter_specs(function: Function) -> tuple[tuple[TensorSpec, ...], tuple[ScalarSpec, ...]]:
    """The tensors and the scalars of a kernel, in order."""
    from tilec.ir.facts.rows import row_axis  # imported here, because launchers do not need the operations

    tensors: list[TensorSpec] = []
    scalars: list[ScalarSpec] = []
    for one in function.parameters:
        if one.access is None:
            scalars.append(ScalarSpec(one.name, one.value.tile.dtype.name))
        else:
            type_ = one.value.tensor
            facts = function.is_resident(one.value), row_axis(function, one.value)
            tensors.append(
                TensorSpec(one.name, one.access.value, type_.dtype.name, type_.dims, type_.strides, type_.align, *facts)
            )
    return tuple(tensors), tuple(scalars)


def value_check(fact: ValueFact) -> ValueCheck:
    """The launcher's check for a `values` declaration of a kernel."""
    return ValueCheck(
        fact.tensor, fact.low, fact.high, fact.distinct, fact.sorted, fact.ends, fact.distinct_in_rows
    )  # fmt: skip


def value_promise(promise: Promise) -> ValuePromise:
    """The manifest's record of a proven `ensures` declaration."""
    return ValuePromise(
        promise.tensor, promise.low, promise.high, promise.above, promise.distinct, promise.sorted, promise.distinct_in_rows
    )


OPTIONAL: Final[dict[type[Any], tuple[str, ...]]] = {
    ValueCheck: ("sorted", "ends", "distinct_in_rows"),
    ValuePromise: ("above", "distinct", "sorted", "distinct_in_rows"),
    Manifest: ("promises",),
}
"""Fields that records omit if they are false or empty."""


def json_bytes(data: Any) -> bytes:
    """JSON data as stages write it; digests are computed from these bytes."""
    return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def to_json(value: Any) -> Any:
    """Plain JSON data of a manifest or any part of it."""
    if isinstance(value, Expr):
        return value.to_json()
    if hasattr(value, "__dataclass_fields__"):
        kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
        left_out = OPTIONAL.get(kind, ())
        names = [name for name in value.__dataclass_fields__ if name not in left_out or getattr(value, name)]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return [to_json(item) for item in items]
    return value
