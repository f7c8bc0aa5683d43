"""What the compiler hands to the runtime: a CUBIN and the manifest that says how to launch it and why that is safe.

Made by the pipeline, stored by the cache, packed into bundles, enforced by the launcher. Pure data: JSON in, JSON out, no
code. `manifest_from_json` trusts nothing: it checks every type and bound before anything is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tilec.ir.expr import Expr

MANIFEST_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor parameter. `access` is in, out, inout, scratch or atomic; `strides` None means row-major contiguous;
    dims and strides (elements) are expressions over the launch values; `align` is bytes."""

    name: str
    access: str
    dtype: str
    dims: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None
    align: int


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A scalar parameter by dtype name."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class AbiSlot:
    """One kernel argument in order: `kind` pointer (u64), dim (i32), stride (i64) or scalar (its dtype)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """A predicate over launch values that the launcher evaluates; `text` is shown when it fails."""

    condition: Expr
    text: str


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """Every integer stored in `tensor` lies in `low <= v < high` (and no two are equal, if `distinct`)."""

    tensor: str
    low: Expr
    high: Expr
    distinct: bool


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
    """One proven fact. `property` is bounds, race, coverage, order, wrap or divisor; `rung` is static, interval, set, launch,
    value or unsafe; `facts` are the texts of the preconditions and value facts the proof used; `sets` the isl sets."""

    property: str
    subject: str
    location: str
    rung: str
    facts: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a launcher needs to know of one CUBIN, and the record of its proofs."""

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
    launch_checks: tuple[LaunchCheck, ...]
    value_checks: tuple[ValueCheck, ...]
    no_alias: tuple[tuple[str, str], ...]
    resources: Resources
    obligations: tuple[Obligation, ...]
    unsafe: tuple[str, ...]
    digests: dict[str, str]
    toolchain: dict[str, str]
    format: int = MANIFEST_FORMAT


@dataclass(frozen=True, slots=True)
class Artifact:
    """A manifest with its CUBIN and the PTX it was assembled from."""

    manifest: Manifest
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)


def to_json(value: Any) -> Any:
    """Plain JSON data of a manifest or any part of it."""
    if isinstance(value, Expr):
        return value.to_json()
    if hasattr(value, "__dataclass_fields__"):
        return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return [to_json(item) for item in items]
    return value
