"""GPU test cases for artifacts and sizes: tensors with fresh data, torch's result and the float64 result.

Tensors are generated from the manifest alone: floats are normal, integers are in
the range of the kernel's value checks, written tensors are poisoned with 0xFF bytes (NaN as a float, -1 as an integer). Each
kernel is defined by one torch expression, evaluated once in the kernel's dtype (torch's own error) and once on float64 copies
(the reference). A result is right if each element is within the bound of its roundings (`rounded_kernels`); what a kernel
computes from a row that it stored is compared with that row (`stored_rows`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ci.bench.kernels import (
    attention_cases,
    codes_cases,
    decode_cases,
    experts_cases,
    experts_fp8_cases,
    experts_tile_cases,
    few_cases,
    packed_cases,
    pages_cases,
    plain_cases,
    rounded_attention,
    rounded_kernels,
    sampling_cases,
    stored_rows,
)  # fmt: skip
from ci.bench.kernels.launch import Bench, Entry, Tensors, scalar_value
from tilec.artifact.records import Manifest, TensorSpec
from tilec.target.dtypes import DTYPES

torch: Any = importlib.import_module("torch")

MEANING: Final = {
    **plain_cases.MEANING, **attention_cases.MEANING, **decode_cases.MEANING, **few_cases.MEANING, **codes_cases.MEANING,
    **experts_cases.MEANING, **experts_tile_cases.MEANING, **experts_fp8_cases.MEANING,
    **sampling_cases.MEANING, **pages_cases.MEANING, **packed_cases.MEANING,
}  # fmt: skip
"""Each kernel as torch expressions: from a manifest and tensors, what is written."""
ROUNDED: Final = {
    **rounded_kernels.ROUNDED, **rounded_attention.ROUNDED, **codes_cases.ROUNDED, **experts_cases.ROUNDED,
    **experts_tile_cases.ROUNDED, **experts_fp8_cases.ROUNDED, **sampling_cases.ROUNDED, **pages_cases.ROUNDED,
    **packed_cases.ROUNDED,
}  # fmt: skip
"""The same with bounds of the errors of each float."""


def fits(manifest: Manifest, dims: Mapping[str, int]) -> bool:
    """Whether these dims agree with the constants and satisfy every launch check that depends only on them."""
    if any(dims.get(name, value) != value for name, value in manifest.constants.items() if isinstance(value, int)):
        return False
    needed = {name for spec in manifest.tensors for expr in spec.dims for name in expr.symbols()}
    env = dict(dims)
    if not needed <= {*env, *_constants(manifest), *(spec.name for spec in manifest.scalars)}:
        return False
    env |= _integers(manifest, dims)
    for check in manifest.launch_checks:
        if set(check.condition.symbols()) <= set(env) and not check.condition.evaluate(env):
            return False
    return True


def make_tensors(manifest: Manifest, dims: Mapping[str, int], device: str) -> Tensors:
    """Inputs with fresh random data, outputs poisoned."""
    env = dict(dims) | _integers(manifest, dims)
    tensors = {spec.name: _make_tensor(manifest, spec, env, device) for spec in manifest.tensors}
    attention_cases.adjust(manifest, tensors)
    decode_cases.adjust(manifest, tensors)
    codes_cases.adjust(manifest, tensors)
    experts_cases.adjust(manifest, tensors)
    experts_tile_cases.adjust(manifest, tensors)
    sampling_cases.adjust(manifest, tensors)
    pages_cases.adjust(manifest, tensors)
    packed_cases.adjust(manifest, tensors)
    return tensors


def _make_tensor(manifest: Manifest, spec: TensorSpec, env: Mapping[str, int], device: str) -> Any:
    shape = tuple(expr.evaluate(env) for expr in spec.dims)
    dtype = getattr(torch, DTYPES[spec.dtype].numpy)
    if spec.access in ("out", "scratch"):
        return _poisoned(shape, dtype, device)
    if spec.dtype[0] in "iu":
        low, high, distinct = 0, 127, False
        for check in manifest.value_checks:
            if check.tensor == spec.name:
                low, high = check.low.evaluate(env), check.high.evaluate(env)
                distinct = distinct or check.distinct
        if distinct:
            return (torch.randperm(high - low, device=device)[: math.prod(shape)] + low).reshape(shape).to(dtype)
        return torch.randint(low, high, shape, device=device, dtype=dtype)
    if spec.access == "atomic":
        return torch.zeros(shape, dtype=dtype, device=device)
    drawn = torch.float32 if math.prod(shape) < 2**28 else torch.bfloat16 if dtype.itemsize == 1 else dtype
    return torch.randn(shape, dtype=drawn, device=device).to(dtype)


GUARD: Final = 128
"""Poisoned elements before and after each written tensor."""


def _poisoned(shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    count = math.prod(shape)
    guarded = torch.empty(count + 2 * GUARD, dtype=dtype, device=device)
    guarded.view(torch.uint8).fill_(0xFF)
    tensor = guarded[GUARD : GUARD + count].view(shape)
    tensor.guarded = guarded
    return tensor


def make_written(manifest: Manifest, tensors: Tensors) -> Tensors:
    """The same inputs with separate written tensors: outputs poisoned, the others copied."""
    fresh = dict(tensors)
    for spec in manifest.tensors:
        if spec.access in ("out", "scratch"):
            old = tensors[spec.name]
            fresh[spec.name] = _poisoned(tuple(old.shape), old.dtype, str(old.device))
        elif spec.access != "in":
            fresh[spec.name] = tensors[spec.name].clone()
    return fresh


def guards_intact(tensors: Tensors) -> bool:
    """Whether no byte around a poisoned tensor was written."""
    for tensor in tensors.values():
        guarded = getattr(tensor, "guarded", None)
        if guarded is not None:
            guards = torch.cat((guarded[:GUARD], guarded[-GUARD:])).view(torch.uint8)
            if not bool((guards == 0xFF).all()):
                return False
    return True


def bytes_moved(manifest: Manifest, tensors: Tensors) -> int:
    """Minimum traffic: each input read once, each output written once; of a gathered table only the gathered rows count."""
    known = attention_cases.bytes_moved(manifest, tensors)
    known = experts_cases.bytes_moved(manifest, tensors) if known is None else known
    known = pages_cases.bytes_moved(manifest, tensors) if known is None else known
    if known is not None:
        return known
    total = 0
    written = sum(_bytes(tensors[spec.name]) for spec in manifest.tensors if spec.access in ("out", "inout"))
    for spec in manifest.tensors:
        size = _bytes(tensors[spec.name])
        if spec.access == "in":
            gathered = manifest.kernel in GATHERS and len(spec.dims) == 2
            total += min(size, written) if gathered else size
        elif spec.access == "inout":
            total += 2 * size
        else:
            total += size
    return total


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


GATHERS: Final = ("embedding", "gather_row")

# Odd, tiny and large values of every dim name the kernels use; values that violate a kernel's contract are skipped.
CHECKED_DIMS: Final[dict[str, tuple[int, ...]]] = {
    "N": (1, 7, 8, 1000, 1024, 4093, 65537, 1 << 20, 1000003, 1000008),
    "T": (1, 3, 257, 1031), "B": (1, 2, 3, 4, 5, 6, 7, 8), "V": (1, 5, 1009, 32768, 151936),
    "H": (1024, 2048, 2560, 4096, 5120, 264, 1000, 8), "M": (1, 17, 128, 129, 333, 1024), "K": (8, 64, 200, 1024, 2560, 4096),
}  # fmt: skip
MAX_CHECKED: Final = 14
"""Maximum number of sizes checked per artifact."""
MAX_ELEMENTS: Final = 80_000_000


def checked_sizes(manifest: Manifest) -> Iterator[dict[str, int]]:
    """Dims to check: each dim steps through its list while the others rotate, so that odd sizes are combined."""
    given = attention_cases.sizes(manifest) or decode_cases.sizes(manifest) or sampling_cases.sizes(manifest)
    given = given or few_cases.sizes(manifest) or codes_cases.sizes(manifest) or experts_cases.sizes(manifest)
    given = given or experts_tile_cases.sizes(manifest) or experts_fp8_cases.sizes(manifest) or pages_cases.sizes(manifest)
    given = given or packed_cases.sizes(manifest)
    if given:
        yield from (dims for dims in given if fits(manifest, dims))
        return
    names = list(dict.fromkeys(name for spec in manifest.tensors for expr in spec.dims for name in expr.symbols()))
    names = [name for name in names if name not in {spec.name for spec in manifest.scalars}]
    lists = {name: CHECKED_DIMS.get(name, (1, 3, 64, 1000, 1024)) for name in names}
    longest = max((len(values) for values in lists.values()), default=1)
    seen: set[tuple[int, ...]] = set()
    for step in range(longest * 7):
        dims: dict[str, int] = {}
        for position, name in enumerate(names):
            values = lists[name]
            dims[name] = values[(step + position * (step // longest)) % len(values)]
        key = tuple(dims.values())
        if key in seen or not fits(manifest, dims):
            continue
        env = dims | _integers(manifest, dims)
        elements = sum(math.prod(expr.evaluate(env) for expr in spec.dims) for spec in manifest.tensors)
        if elements > MAX_ELEMENTS:
            continue
        seen.add(key)
        yield dims
        if len(seen) == MAX_CHECKED or not names:
            return


def _constants(manifest: Manifest) -> dict[str, int]:
    return {name: value for name, value in manifest.constants.items() if isinstance(value, int)}


def _integers(manifest: Manifest, dims: Mapping[str, int]) -> dict[str, int]:
    """Constants and integer scalars by name."""
    env = {**dims, **_constants(manifest)}
    return _constants(manifest) | {
        spec.name: int(scalar_value(spec.name, env, manifest.constants)) for spec in manifest.scalars if spec.dtype[0] in "iu"
    }


@dataclass(frozen=True)
class Comparison:
    """Errors of one output against float64, relative: norm of the difference and largest difference over largest value."""

    output: str
    ours: tuple[float, float]
    torch: tuple[float, float]
    ok: bool


def launched(bench: Bench, entry: Entry, tensors: Tensors) -> list[Comparison]:
    """Launch on these tensors, and compare what was written with float64."""
    written = {spec.name for spec in entry.manifest.tensors if spec.access != "in"}
    before = {name: tensor.clone() if name in written else tensor for name, tensor in tensors.items()}
    bench.plan(entry, tensors).launch(bench.stream())
    bench.synchronize()
    for name, value in right_results(entry.manifest, before).items() if bench.dry else ():
        tensors[name].copy_(value)
    return compare(before, tensors, entry.manifest)


def right_results(manifest: Manifest, before: Tensors) -> Tensors:
    """What a right kernel writes, for a dry run."""
    bounded = ROUNDED[manifest.kernel](manifest, before) if manifest.kernel in ROUNDED else {}
    written = MEANING[manifest.kernel](manifest, before) | {name: one.value for name, one in bounded.items()}
    if manifest.kernel in stored_rows.KERNELS:
        row = written[stored_rows.row_name(manifest)].to(before[stored_rows.row_name(manifest)].dtype)
        found = _from_stored_row(manifest, before, {stored_rows.row_name(manifest): row})
        written |= {name: torch.as_tensor(one.exact, device=row.device) for name, one in found.items()}
    return written


def compare(before: Tensors, after: Tensors, manifest: Manifest) -> list[Comparison]:
    """Check every written tensor: each element within the bound that follows from the kernel's arithmetic (`rounded_kernels`)
    or, if it is computed from a stored row, from that row (`stored_rows`); integers and NaN as they are. Errors of torch in
    the same dtype are for the reader: what they are on one input is chance, so no verdict rests on them."""
    meaning = MEANING[manifest.kernel]
    library = meaning(manifest, before)
    # Floats are converted to float64; integers are kept, because they are indices.
    truth = meaning(manifest, {k: v.double() if v.is_floating_point() else v for k, v in before.items()})
    bounded = ROUNDED[manifest.kernel](manifest, before) if manifest.kernel in ROUNDED else {}
    computed, by_torch = (_from_stored_row(manifest, before, written) for written in (after, library))
    results: list[Comparison] = []
    for name, exact in truth.items():
        stored, reference = after[name], library[name].to(after[name].dtype)
        if name in computed:
            ours = _errors(stored, torch.as_tensor(computed[name].exact, device=stored.device))
            theirs = _errors(reference, torch.as_tensor(by_torch[name].exact, device=stored.device))
            ok = computed[name].allows(_host(stored))
        else:
            ours, theirs = _errors(stored, exact), _errors(reference, exact)
            ok = bounded[name].allows(stored) if name in bounded else _same(stored, exact)
        results.append(Comparison(name, ours, theirs, ok))
    return results


def _same(stored: Any, exact: Any) -> bool:
    """Whether integers are the same; a float without a bound is none."""
    return not stored.is_floating_point() and tuple(stored.shape) == tuple(exact.shape) and bool((stored == exact).all())


def _from_stored_row(manifest: Manifest, before: Tensors, written: Tensors) -> dict[str, stored_rows.Output]:
    """The outputs that are computed from a stored row, for the row among `written`; none if the kernel has none."""
    if manifest.kernel not in stored_rows.KERNELS:
        return {}
    row, runs = written[stored_rows.row_name(manifest)], before["squares"].shape[1]
    dtype = before[stored_rows.row_name(manifest)].dtype
    found = stored_rows.computed(manifest, _host(row.to(dtype)), _host(before["weight"]), runs)
    return {output.name: output for output in found}


def _host(tensor: Any) -> Any:
    """A float tensor as a float64 array."""
    return tensor.double().cpu().numpy()


def _errors(value: Any, exact: Any) -> tuple[float, float]:
    value, exact = value.double(), exact.double()
    difference = torch.where(value == exact, 0.0, value - exact)  # equal infinities count as equal
    finite = exact.masked_fill(exact.isinf(), 0.0)
    norm, top = float(finite.norm()), float(finite.abs().max())
    return float(difference.norm()) / (norm or 1.0), float(difference.abs().max()) / (top or 1.0)
