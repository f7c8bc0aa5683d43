"""Generates launches of a kernel: random sizes and inputs within its contract.

In: the contract of a built artifact, or of a kernel that was only proven. Out: values of dims, strides and scalars, and storage
of tensors. Small sizes, if possible just past the edges of tiles, are preferred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import OF_RANKS, LaunchCheck, Manifest, ScalarSpec, TensorSpec, ValueCheck, parameter_specs
from tilec.ir.expr import Expr
from tilec.ir.types import DTYPES, MAX_DIM
from tilec.target.dtypes import numpy_dtype

if TYPE_CHECKING:
    from tilec.ir.core import Function
    from tilec.passes.prover.prove import Proofs

_SIZES: Final = (1, 2, 3, 5, 7, 8, 16, 17, 32, 33, 40, 64, 100, 128, 136, 256)
_TRIALS: Final = 5000
_ENOUGH: Final = 300
_MOST_ELEMENTS: Final = 1 << 18
_LEAST_TILE: Final = 16
_MOST_NUMBERS: Final = 1 << 16
"""Of those that the elements of a row are distinct ones of, unless a row has more."""


LARGEST: Final = 1 << 64
"""Launch values have a smaller magnitude than this, as every number of u64 has."""


class LaunchValuesError(ValueError):
    """Malformed values, values that the kernel does not have, or values for which no launch was found."""


def values_text(values: Mapping[str, int | float], between: str = " ") -> str:
    """Launch values as users write them: integers with all their digits."""
    return between.join(f"{name}={value if isinstance(value, int) else f'{value:g}'}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract of a launch. `names` are the values that define it: dims, strides and scalars. `threads` is the number of
    threads per block (1 if the kernel is not built)."""

    names: frozenset[str]
    constants: dict[str, int | float | bool | str]
    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    grid: tuple[Expr, ...]
    launch_checks: tuple[LaunchCheck, ...]
    value_checks: tuple[ValueCheck, ...]
    threads: int

    @staticmethod
    def of_manifest(manifest: Manifest) -> Contract:
        """The contract of a built artifact."""
        names = {slot.name for slot in manifest.abi if slot.kind not in ("pointer", "tensor_map")} | {
            name for spec in manifest.tensors for expr in (*spec.dims, *(spec.strides or ())) for name in expr.symbols()
        }
        return Contract(
            frozenset(names), manifest.constants, manifest.tensors, manifest.scalars, manifest.grid, manifest.launch_checks,
            manifest.value_checks, manifest.block,
        )  # fmt: skip

    @staticmethod
    def of_function(function: Function, proofs: Proofs) -> Contract:
        """The contract of a kernel that is proven but not built."""
        tensors, scalars = parameter_specs(function)
        names = frozenset((*function.dims, *function.strides, *(spec.name for spec in scalars)))
        return Contract(
            names, dict(function.constants), tensors, scalars, function.grid, proofs.launch_checks, proofs.value_checks, 1,
        )  # fmt: skip


def given_values(text: str | None) -> dict[str, float]:
    """Parse launch values such as `N=1000,eps=1e-6`. LaunchValuesError if malformed."""
    values: dict[str, float] = {}
    for item in (text or "").split(","):
        name, equals, value = item.partition("=")
        if not item:
            continue
        try:
            number = float(value) if "." in value or "e" in value else int(value)
        except ValueError:
            number = math.nan
        if not equals or not name.isidentifier() or math.isnan(number):
            raise LaunchValuesError(f"`{item}` is not NAME=NUMBER")
        if not abs(number) < LARGEST:
            raise LaunchValuesError(f"`{item}` is out of range: numbers are below 2 to the power of 64")
        if name in values:
            raise LaunchValuesError(f"`{name}` is given twice")
        values[name] = number
    return values


def small_launches(contract: Contract, given: dict[str, float]) -> list[dict[str, float]]:
    """Dims, strides and scalars of at least one launch: the given values, and small ones for the rest that satisfy the launch
    checks. The best for a test come first. LaunchValuesError if none are found."""
    if any(spec.access in OF_RANKS for spec in contract.tensors):
        raise LaunchValuesError("the kernel meets other ranks: a launch of it alone would wait for ever")
    floats = {spec.name for spec in contract.scalars if spec.dtype.startswith(("f", "bf"))}
    names = contract.names
    for name, value in given.items():
        if name not in names:
            raise LaunchValuesError(f"no launch value `{name}`; they are {', '.join(sorted(names)) or 'none'}")
        if name not in floats and int(value) != value:
            raise LaunchValuesError(f"`{name}` is an integer, found {value:g}")
    for spec in contract.scalars:
        low, high = (0, 0) if spec.name in floats else DTYPES[spec.dtype].integer_range()
        if spec.name in given and spec.name not in floats and not low <= given[spec.name] <= high:
            raise LaunchValuesError(f"`{spec.name}` is {given[spec.name]}, and {spec.dtype} has {low} to {high}")
    tiles = sorted({int(c) for c in contract.constants.values() if isinstance(c, int) and c >= _LEAST_TILE})
    sizes = (
        *_SIZES,
        *(size for tile in tiles for size in (tile - 1, tile, tile + 1, tile + 8, 2 * tile) if size not in _SIZES),
    )
    random = np.random.default_rng(0)
    allowed: dict[tuple[int, ...], dict[str, int]] = {}
    for _ in range(_TRIALS):
        env = {name: sizes[random.integers(len(sizes))] for name in sorted(names - floats)}
        env |= {name: int(value) for name, value in given.items() if name not in floats}
        _contiguous(contract, env, given)
        _solve(contract, env, given)
        if _is_allowed(contract, env):
            allowed[tuple(env.values())] = env
            if len(allowed) == _ENOUGH:
                break
    if not allowed:
        raise LaunchValuesError(_none_found(contract, given, floats))
    best = sorted(allowed.values(), key=lambda env: _rank(contract, env, tiles))
    reals = {name: given.get(name, 0.5) for name in floats}
    return [{**env, **reals} for env in best]


def _none_found(contract: Contract, given: dict[str, float], floats: set[str]) -> str:
    """The message if there is no launch: the launch check that the given values violate, or a request for more values."""
    known = {name: int(value) for name, value in given.items() if name not in floats}
    shown = ", ".join(f"{name}={value}" for name, value in known.items())
    for check in contract.launch_checks:
        if known.keys() >= set(check.condition.symbols()) and not check.condition.evaluate(known):
            return f"no launch has {shown}: {check.text}"
    shown_values = f" with {shown}" if shown else ""
    return f"found no small sizes{shown_values} that the launch checks allow; give them with --dims"


def large_launch(contract: Contract, given: dict[str, float], most: int = 1 << 28) -> dict[str, float]:
    """One launch with tensors of at most `most` bytes in all, if there is one: the given values, and large ones for the rest.
    Of the launches with at least half of the largest size found, it has the most balanced values. LaunchValuesError as for
    `small_launches`."""
    small = small_launches(contract, given)
    floats = {spec.name for spec in contract.scalars if spec.dtype.startswith(("f", "bf"))}
    open_ = sorted(contract.names - floats - given.keys())
    random = np.random.default_rng(0)
    choices = [[1 << power] * len(open_) for power in range(4, 25)]
    choices += [[1 << int(power) for power in random.integers(3, 24, len(open_))] for _ in range(_TRIALS // 5)]
    found = [(_bytes(contract, small[0]), 0.0, dict(small[0]))]
    for sizes in choices if open_ else ():
        env = {name: int(value) for name, value in given.items() if name not in floats} | dict(zip(open_, sizes, strict=True))
        _contiguous(contract, env, given)
        _solve(contract, env, given)
        size = _bytes(contract, env)
        if size <= most and _is_allowed(contract, env):
            found.append((size, max(sizes) / min(sizes), {**small[0], **env}))
    largest = max(size for size, _, _ in found)
    return min((one for one in found if 2 * one[0] >= largest), key=lambda one: (one[1], -one[0]))[2]


def _bytes(contract: Contract, env: Mapping[str, float]) -> int:
    integers = {name: int(value) for name, value in env.items()}
    return sum(span_of(spec, integers) * DTYPES[spec.dtype].bytes for spec in contract.tensors)


def _is_allowed(contract: Contract, env: dict[str, int]) -> bool:
    """Whether the launcher would accept these values: launch checks hold, every value check can be satisfied, and each extent
    and grid axis is between 1 and `MAX_DIM`."""
    if not all(check.condition.evaluate(env) for check in contract.launch_checks):
        return False
    for check in contract.value_checks:
        room = check.high.evaluate(env) - check.low.evaluate(env)
        spec = next(spec for spec in contract.tensors if spec.name == check.tensor)
        size, row = span_of(spec, env), spec.dims[-1].evaluate(env) if check.distinct_in_rows else 1
        if room < (size if check.distinct else row) or (check.ends and size == 1 and room != 1):
            return False
    extents = [dim.evaluate(env) for spec in contract.tensors for dim in spec.dims]
    return all(1 <= extent <= MAX_DIM for extent in (*extents, *(axis.evaluate(env) for axis in contract.grid)))


def _rank(contract: Contract, env: dict[str, int], tiles: list[int]) -> tuple[bool, bool, int, int]:
    """Sort key, the best launch first: not too large, more than one block, many sizes just past a tile's edge, few elements."""
    elements = sum(span_of(spec, env) for spec in contract.tensors)
    blocks = 1
    for axis in contract.grid:
        blocks *= axis.evaluate(env)
    past = sum(any(0 < value - tile <= 8 for tile in tiles) and all(value % tile for tile in tiles) for value in env.values())
    return elements + blocks * contract.threads > _MOST_ELEMENTS, blocks < 2, -past, elements + blocks * contract.threads


def _contiguous(contract: Contract, env: dict[str, int], given: dict[str, float]) -> None:
    for spec in contract.tensors:
        step = 1
        for dim, stride in reversed(list(zip(spec.dims, spec.strides or (), strict=False))):
            if stride.op == "sym" and stride.name not in given:
                env[stride.name] = step
            step *= dim.evaluate(env)


def _solve(contract: Contract, env: dict[str, int], given: dict[str, float]) -> None:
    """Assign symbols that an equation among the launch checks defines."""
    for check in contract.launch_checks:
        if check.condition.op != "==":
            continue
        left, right = check.condition.args
        for one, other in ((left, right), (right, left)):
            if one.op == "sym" and one.name not in given:
                env[one.name] = other.evaluate(env)
                break


def random_tensors(contract: Contract, values: Mapping[str, float], seed: int) -> dict[str, NDArray[Any]]:
    """Random values of all tensors within the value checks, as flat storage (bf16 and 8-bit floats as unsigned integers)."""
    env = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    random = np.random.default_rng([seed, 1])
    checks = {check.tensor: check for check in contract.value_checks}
    found: dict[str, NDArray[Any]] = {}
    for spec in contract.tensors:
        found[spec.name] = random_values(random, spec, span_of(spec, env), Stored.of(checks.get(spec.name), spec, env))
    return found


def span_of(spec: TensorSpec, env: dict[str, int]) -> int:
    """Number of elements from the first to the last element of a tensor in memory."""
    dims = [dim.evaluate(env) for dim in spec.dims]
    count = 1
    if spec.strides is None:
        for dim in dims:
            count *= dim
        return count
    return 1 + sum((dim - 1) * stride.evaluate(env) for dim, stride in zip(dims, spec.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Stored:
    """The allowed values of an integer tensor: its value check evaluated at one launch; small numbers without one."""

    low: int = 0
    high: int = 100
    distinct: bool = False
    sorted: bool = False
    ends: bool = False
    row: int = 0
    """Extent of the last axis, if the elements along it are distinct."""
    step: int = 1
    """Stride of the last axis."""

    @classmethod
    def of(cls, check: ValueCheck | None, spec: TensorSpec, env: Mapping[str, int]) -> Stored:
        """Evaluate a value check of a tensor at the values of a launch."""
        if check is None:
            return cls()
        row = spec.dims[-1].evaluate(env) if check.distinct_in_rows else 0
        step = spec.strides[-1].evaluate(env) if row > 1 and spec.strides is not None else 1
        return cls(
            check.low.evaluate(env), check.high.evaluate(env), check.distinct, check.sorted, check.ends, row, max(1, step)
        )  # fmt: skip

    @property
    def is_unrepeatable(self) -> bool:
        """Whether a repetition of part of the values would violate the check."""
        return self.distinct or self.sorted or self.row > 1


def random_values(random: np.random.Generator, spec: TensorSpec, count: int, stored: Stored) -> NDArray[Any]:
    """Random storage of `count` elements for a tensor: normal floats, and integers of the whole range of `stored`."""
    dtype = DTYPES[spec.dtype]
    if spec.dtype == "bf16":  # without ml_dtypes, so that a machine with the launcher alone can time its kernels
        return (random.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.is_float:
        return random.normal(size=count).astype(np.float32).astype(numpy_dtype(dtype)).view(dtype.storage)
    if dtype.kind == "b":
        return _integers(random, Stored(0, 2), count).astype(np.uint8)
    low, high = dtype.integer_range()
    limited = replace(stored, low=max(low, stored.low), high=min(high + 1, stored.high))
    return _integers(random, limited, count).astype(dtype.numpy)


def repeated(numbers: NDArray[Any], row: int, count: int) -> NDArray[Any]:
    """`count` of some distinct numbers, repeated: `row` of them next to each other differ, and two such rows may share some."""
    period = numbers.size - (numbers.size > row and numbers.size % row == 0)
    return np.resize(numbers[:period], count)


def _integers(random: np.random.Generator, stored: Stored, count: int) -> NDArray[Any]:
    low, high = stored.low, stored.high
    dtype = np.uint64 if high > 1 << 63 else np.int64
    if stored.ends:
        inner = Stored(low + stored.distinct, high - stored.distinct, stored.distinct, sorted=True)
        middle = _integers(random, inner, count - 2).astype(dtype) if count > 2 else np.empty(0, dtype)
        return np.concatenate((np.array([low], dtype), middle, np.array([high - 1], dtype)))[:count]
    if stored.distinct:
        found = random.permutation(np.arange(low, high, dtype=dtype))[:count]
    elif stored.row > 1:
        numbers = random.permutation(np.arange(low, min(high, low + max(stored.row, _MOST_NUMBERS)), dtype=dtype))
        found = np.repeat(repeated(numbers, stored.row, -(-count // stored.step)), stored.step)[:count]
    else:
        found = random.integers(low, high, count, dtype=dtype)
    return np.sort(found) if stored.sorted else found
