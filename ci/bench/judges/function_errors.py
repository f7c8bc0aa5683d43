"""The errors of the accurate functions of f32 (`tilec.ir.functions`) in units in the last place, against references of 80 bits.

    python ci/bench/judges.py function_errors [--step 499]

Functions of one argument: every float whose bits are a multiple of the step, and special numbers with their neighbors. `pow`:
random pairs of any bits, pairs whose power is in the range of f32, pairs next to 1, and all pairs of special numbers. The steps
run on NumPy arrays, as the interpreter has them; the PTX of every architecture gives the same bits in the emulator
(`tests/words/test_functions.py`). They consist of operations that IEEE 754 defines, so a chip gives them too, if it is as the
PTX ISA says; no chip was asked. The chip's approximations (`fast=True`) are not measured: the emulator computes them exactly
and rounds, which says nothing about the errors of a chip.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.front import Outcome
from ci.bench.markdown import grid
from tilec.interpreter.steps import ArrayArithmetic
from tilec.ir import functions

Array = NDArray[Any]
PART: Final = 1 << 20
"""Arguments at a time."""
SPECIAL: Final = (
    0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, 2.0**-149,
    -(2.0**-149), 2.0**-126, -(2.0**-126), 3.4028235e38, -3.4028235e38, 88.72284, -87.33655, -103.97208, 128.0, -126.0,
    -149.0, -150.0, 0.55, 9.010914, 2.0**-12, 65536.0, -65536.0, 2.0**23, 2.0**24 + 2, 33554433.0, 1e30, 0.70710677, 1.4142135,
    1.5707964, 3.1415927, 11.0, 1e-30,
)  # fmt: skip
"""Where a function has a limit, an end of its range, or another way of computing it."""


def _wide(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def exact(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(x.astype(np.longdouble))

    return exact


def _logistic(x: Array) -> Array:
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1) / (1 + power)


REFERENCES: Final[dict[str, Callable[[Array], Array]]] = {
    "exp": _wide(np.exp), "exp2": _wide(np.exp2), "log": _wide(np.log), "log2": _wide(np.log2), "tanh": _wide(np.tanh),
    "sin": _wide(np.sin), "cos": _wide(np.cos), "sigmoid": _wide(_logistic), "rsqrt": _wide(lambda x: 1 / np.sqrt(x)),
}  # fmt: skip
"""The functions of the C library for `long double` of x86: a significand of 64 bits."""


def exact_power(x: Array, y: Array) -> Array:
    """`x ** y`; f64 decides what zeros, infinities, NaN and 1 give."""
    with np.errstate(all="ignore"):
        special = ~np.isfinite(x) | ~np.isfinite(y) | (x == 0) | (y == 0) | (np.abs(x) == 1)
        wide = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        return np.where(special, np.power(x.astype(np.float64), y.astype(np.float64)), wide)


def difference_in_units(found: Array, exact: Array) -> Array:
    """Distances of f32 from exact values, in units in the last place of f32 at the exact value; infinity counts as 2^128. A NaN
    in place of a number, the reverse, and the wrong sign of a zero are infinitely far."""
    most = np.longdouble(2.0**128)
    with np.errstate(all="ignore"):
        value, truth = (np.clip(side.astype(np.longdouble), -most, most) for side in (found, exact))
        size = np.abs(truth)
        exponent = np.frexp(np.where((size > 0) & np.isfinite(size), size, 1))[1] - 1
        distance = np.abs(value - truth) / np.ldexp(np.longdouble(1), np.clip(exponent, -126, 127) - 23)
    nan = np.isnan(exact)
    distance = np.where(nan & np.isnan(found), 0, np.where(nan | np.isnan(found), np.inf, distance))
    return np.where((found == 0) & ~nan & (np.signbit(found) != np.signbit(exact)), np.inf, distance)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=int, default=499, help="distance of the arguments' bits (default: 499)")


def measure(options: argparse.Namespace) -> Outcome:
    """The largest error of each function, where it is, and of how many arguments."""
    found = {kind: _largest(_of_one(kind, options.step)) for kind in functions.UNARY}
    found["pow"] = _largest(_powers())
    rows = [[f"`{name}`", f"{row['units']:.2f}", f"{row['arguments']:,}", row["at"]] for name, row in found.items()]
    table = grid(["function", "largest error, ulp", "arguments", "at"], rows)
    page = "\n".join(["# Errors of the accurate functions", "", *table])
    status = 0 if all(row["units"] <= 2 for row in found.values()) else 1
    return Outcome({"step": options.step, "functions": found}, {"function_errors.md": page + "\n"}, status)


def _of_one(kind: str, step: int) -> Iterator[tuple[Array, list[Array]]]:
    """Errors and arguments, part by part."""
    special = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        near = np.concatenate([special, *(np.nextafter(special, np.float32(side)) for side in (-np.inf, np.inf))])
    span = PART * step
    parts = (np.arange(first, min(first + span, 1 << 32), step, dtype=np.uint64) for first in range(0, 1 << 32, span))
    for x in (near, *(part.astype(np.uint32).view(np.float32) for part in parts)):
        with np.errstate(all="ignore"):
            result = functions.unary(ArrayArithmetic(x.shape), kind, x)
        yield difference_in_units(result, REFERENCES[kind](x)), [x]


def _powers() -> Iterator[tuple[Array, list[Array]]]:
    random = np.random.default_rng(0)
    special = np.array(SPECIAL, np.float32)
    bases, exponents = np.meshgrid(special, special)
    pairs: list[tuple[Array, Array]] = [(bases.ravel(), exponents.ravel())]
    for _ in range(2):
        bits = random.integers(0, 1 << 32, 2 * PART, dtype=np.uint64).astype(np.uint32).view(np.float32)
        pairs.append((bits[:PART], bits[PART:]))
        for low, high in ((-0.3, 0.5), (-1e-3, 1e-3), (0.0, 0.0)):  # around 1, next to 1, and of all sizes
            base = 1 + random.uniform(low, high, PART) if high else np.exp(random.uniform(-103, 88, PART))
            x = base.astype(np.float32)
            with np.errstate(all="ignore"):
                pairs.append((x, (random.uniform(-150, 129, PART) / np.log2(x.astype(np.float64))).astype(np.float32)))
    for x, y in pairs:
        with np.errstate(all="ignore"):
            result = functions.power(ArrayArithmetic(x.shape), x, y)
        yield difference_in_units(result, exact_power(x, y)), [x, y]


def _largest(parts: Iterator[tuple[Array, list[Array]]]) -> dict[str, Any]:
    count, units, at = 0, -1.0, ""
    for errors, operands in parts:
        count += errors.size
        worst = int(np.argmax(errors))
        if errors[worst] > units:
            units, at = float(errors[worst]), ", ".join(str(operand[worst]) for operand in operands)
    return {"units": units, "arguments": count, "at": at}
