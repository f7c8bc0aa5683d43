"""Checks the launch contract: a manifest and arguments become a `Launch` that satisfies every clause.

Everything is checked on the host, before anything is enqueued, in this order: names, scalars, dtype and rank, dims, strides,
launch checks, grid, alignment, aliasing. The first broken clause is raised, with the argument, the given and the required
value. The proofs of a kernel assume exactly these clauses, so none may be skipped. Clauses that do not depend on addresses are
checked once per combination of shapes, strides and integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact.records import OF_RANKS, Manifest, TensorSpec
from tilec.runtime.dims import evaluate, known_values, solve_dims
from tilec.runtime.errors import LaunchError
from tilec.runtime.scalars import check_scalar, exact_integer
from tilec.runtime.tensors import TensorView, view_tensor

GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
"""Maximum blocks per grid axis on every supported architecture (CUDA C++ programming guide, compute capabilities)."""

MAX_SPAN: Final = 2**63 - 1
"""Maximum distance in bytes between a tensor's first and last byte, so that element offsets fit i64 in the kernel."""

ADDRESSES: Final = 2**64
"""Number of addresses that a kernel's pointers can represent."""

CHECKED_LIMIT: Final = 1024
"""Maximum number of cached shape combinations per kernel."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that satisfies its contract: `env` has dims, strides and integer scalars by name."""

    views: dict[str, TensorView]
    scalars: dict[str, int | float]
    env: dict[str, int]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Results of the checks that depend only on shapes, strides and integers: `env` as in `Launch`, the grid, and for each
    tensor its first byte and end byte relative to its pointer."""

    env: dict[str, int]
    grid: tuple[int, int, int]
    spans: dict[str, tuple[int, int]]


class Checked:
    """Cache of shapes that satisfied a kernel's contract."""

    def __init__(self) -> None:
        self._checked: dict[Any, Shapes] = {}

    def get(
        self, manifest: Manifest, views: dict[str, TensorView], scalars: dict[str, int | float], dims: Mapping[str, int]
    ) -> Shapes:
        """The results for these shapes; checks them if they are new."""
        shapes = tuple((tuple(view.shape), tuple(view.strides)) for view in views.values())
        key = (shapes, tuple(value for value in scalars.values() if isinstance(value, int)), tuple(sorted(dims.items())))
        checked = self._checked.get(key)
        if checked is None:
            checked = check_shapes(manifest, views, scalars, dims)
            if len(self._checked) >= CHECKED_LIMIT:
                self._checked.clear()
            self._checked[key] = checked
        return checked


def check_launch(
    manifest: Manifest,
    arguments: Mapping[str, Any],
    *,
    dims: Mapping[str, int] | None = None,
    device: int = 0,
    owner: Callable[[int], int | None] | None = None,
    checked: Checked | None = None,
) -> Launch:
    """Check every clause except stored values. `dims` gives extents that no tensor's shape determines. `owner` returns the
    device that memory at an address belongs to, for machines with several. `checked` caches results of earlier checks of the
    same manifest."""
    kernel = manifest.kernel
    _check_names(manifest, arguments)
    scalars = {spec.name: check_scalar(spec, arguments[spec.name], kernel) for spec in manifest.scalars}
    views = {spec.name: _view(spec, arguments[spec.name], kernel, device) for spec in manifest.tensors}
    given = {name: _dim(value, name, kernel) for name, value in dims.items()} if dims else {}
    if owner is not None:
        for spec in manifest.tensors:
            if spec.access not in OF_RANKS:  # what ranks share lies on their devices
                _check_device(views[spec.name], spec.name, kernel, device, owner)
    shapes = (Checked() if checked is None else checked).get(manifest, views, scalars, given)
    for spec in manifest.tensors:
        view = views[spec.name]
        if view.pointer % spec.align:
            offset = view.pointer % spec.align
            raise LaunchError(
                "E0908", "the base is not aligned", kernel=kernel, argument=spec.name,
                given=f"address {view.pointer:#x}, {offset} bytes past a {spec.align}-byte boundary",
                required=f"a multiple of {spec.align} bytes",
            )  # fmt: skip
        first, end = shapes.spans[spec.name]
        if view.pointer + first < 0 or view.pointer + end > ADDRESSES:
            raise LaunchError(
                "E0914", "the tensor reaches outside of memory", kernel=kernel, argument=spec.name,
                given=f"bytes {view.pointer + first:#x} to {view.pointer + end:#x}", required="addresses of 64 bits",
            )  # fmt: skip
    _check_aliasing(manifest, views, shapes.spans)
    return Launch(views, scalars, dict(shapes.env), shapes.grid)


def _dim(value: Any, name: str, kernel: str) -> int:
    try:
        return exact_integer(value)
    except TypeError as error:
        raise LaunchError("E0906", "not an integer", kernel=kernel, argument=name, given=str(error)) from None


def check_shapes(
    manifest: Manifest, views: Mapping[str, TensorView], scalars: Mapping[str, int | float], dims: Mapping[str, int],
    least: int = 1,
) -> Shapes:  # fmt: skip
    """Check the clauses that depend only on shapes, strides and integers. With `least` 0, extents and the grid may be 0:
    nothing is then launched, but what is given must fit the kernel all the same."""
    kernel = manifest.kernel
    env = solve_dims(manifest, views, scalars, dims, least)
    for spec in manifest.tensors:
        _check_strides(spec, views[spec.name], env, kernel)
    for check in manifest.launch_checks:
        if not evaluate(check.condition, env, kernel, "launch check"):
            values = known_values(check.condition, env)
            raise LaunchError("E0910", "a precondition does not hold", kernel=kernel, given=values, required=f"`{check.text}`")
    spans = {name: view.span() for name, view in views.items()}
    for name, (first, end) in spans.items():
        if end - first > MAX_SPAN:
            raise LaunchError(
                "E0906", "the tensor is too large to address", kernel=kernel, argument=name,
                given=f"{end - first} bytes from its first element to its last", required=f"at most {MAX_SPAN}",
            )  # fmt: skip
    return Shapes(env, _grid(manifest, env, least), spans)


def _check_names(manifest: Manifest, arguments: Mapping[str, Any]) -> None:
    names = [spec.name for spec in (*manifest.tensors, *manifest.scalars)]
    if len(names) == len(arguments) and all(name in arguments for name in names):
        return
    expected = ", ".join(f"`{name}`" for name in names)
    for name in names:
        if name not in arguments:
            raise LaunchError("E0903", "missing", kernel=manifest.kernel, argument=name, required=expected)
    for name in arguments:
        if name not in names:
            raise LaunchError("E0903", "no such parameter", kernel=manifest.kernel, argument=name, required=expected)


def _view(spec: TensorSpec, value: Any, kernel: str, device: int) -> TensorView:
    view = view_tensor(value, kernel=kernel, argument=spec.name, device=device)
    check_type(spec, view, kernel)
    if not 0 < view.pointer < ADDRESSES and 0 not in view.shape:
        given = f"address {view.pointer:#x}"
        raise LaunchError("E0914", "the tensor has no memory", kernel=kernel, argument=spec.name, given=given)
    if view.read_only and spec.access not in ("in", "peer"):
        raise LaunchError(
            "E0914", "the tensor is read-only", kernel=kernel, argument=spec.name, required=f"writable, it is `{spec.access}`"
        )
    return view


def check_type(spec: TensorSpec, view: TensorView, kernel: str) -> None:
    """E0904 for a dtype, E0905 for a rank that the parameter does not have."""
    if view.dtype != spec.dtype:
        raise LaunchError(
            "E0904",
            "wrong element type",
            kernel=kernel,
            argument=spec.name,
            given=f"`{view.dtype}`",
            required=f"`{spec.dtype}`",
        )
    if len(view.shape) != len(spec.dims):
        required = f"rank {len(spec.dims)}, [{', '.join(map(str, spec.dims))}]"
        given = f"rank {len(view.shape)}, {list(view.shape)}"
        raise LaunchError("E0905", "wrong rank", kernel=kernel, argument=spec.name, given=given, required=required)


def _check_device(view: TensorView, name: str, kernel: str, device: int, owner: Callable[[int], int | None]) -> None:
    memory_device = owner(view.pointer) if view.pointer else None
    if memory_device is not None and memory_device != device:
        raise LaunchError(
            "E0914", "the tensor is on another device", kernel=kernel, argument=name,
            given=f"device {memory_device}", required=f"device {device}, where the kernel is loaded",
        )  # fmt: skip


def _check_strides(spec: TensorSpec, view: TensorView, env: Mapping[str, int], kernel: str) -> None:
    def refuse(message: str, required: str) -> LaunchError:
        given = f"strides {list(view.strides)} for shape {list(view.shape)}"
        return LaunchError("E0907", message, kernel=kernel, argument=spec.name, given=given, required=required)

    if 0 in view.shape:
        return  # no element has an address
    if spec.strides is None:
        if not view.is_contiguous():
            raise refuse("not row-major contiguous", "contiguous memory; copy it, or declare `Strides[...]` in the kernel")
        return
    for axis, (expr, stride, extent) in enumerate(zip(spec.strides, view.strides, view.shape, strict=True)):
        expected = evaluate(expr, env, kernel, "stride")
        if extent != 1 and expected != stride:
            raise refuse(f"stride of axis {axis} is {stride}", f"`{expr}` = {expected}")
    if spec.access == "in":
        return
    # Ownership is proven per element, so two elements of a written tensor must not overlap in memory.
    reach = 1
    for stride, extent in sorted((s, e) for s, e in zip(view.strides, view.shape, strict=True) if e > 1):
        if stride < reach:
            raise refuse("elements overlap in memory", f"every stride at least the {reach} elements that inner axes span")
        reach = stride * (extent - 1) + reach


def _check_aliasing(manifest: Manifest, views: Mapping[str, TensorView], spans: Mapping[str, tuple[int, int]]) -> None:
    for left, right in manifest.no_alias:
        first, second = views[left].pointer, views[right].pointer
        a, b = (first + spans[left][0], first + spans[left][1]), (second + spans[right][0], second + spans[right][1])
        if a[0] < b[1] and b[0] < a[1]:
            raise LaunchError(
                "E0909", f"overlaps `{right}` in memory", kernel=manifest.kernel, argument=left,
                given=f"`{left}` at [{a[0]:#x}, {a[1]:#x}) and `{right}` at [{b[0]:#x}, {b[1]:#x})",
                required="memory of its own",
            )  # fmt: skip


def _grid(manifest: Manifest, env: Mapping[str, int], least: int) -> tuple[int, int, int]:
    sizes = [1, 1, 1]
    # Of persistent blocks no more are launched than the device runs at once.
    limits = (GRID_LIMITS[0] // (1 if manifest.schedule.get("persistent") else manifest.cluster), *GRID_LIMITS[1:])
    for axis, (expr, limit) in enumerate(zip(manifest.grid, limits, strict=False)):
        sizes[axis] = evaluate(expr, env, manifest.kernel, "grid")
        if not least <= sizes[axis] <= limit:
            raise LaunchError(
                "E0911", f"grid axis {axis} is out of range", kernel=manifest.kernel,
                given=f"`{expr}` = {sizes[axis]}", required=f"{least} to {limit} blocks",
            )  # fmt: skip
    return sizes[0], sizes[1], sizes[2]
