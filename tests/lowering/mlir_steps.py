"""Parses the MLIR text of a lowered kernel into steps, and does its arithmetic on NumPy arrays with one value per thread."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
TYPES: dict[str, np.dtype] = {
    "i1": np.dtype(bool),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
}


def numpy_type(text: str) -> tuple[np.dtype, int]:
    """Element type and count (0 for a scalar) of an MLIR type."""
    vector = re.fullmatch(r"vector<(\d+)x(\w+)>", text)
    if vector:
        return TYPES[vector[2]], int(vector[1])
    return (np.dtype(np.int64), 0) if text.startswith("!llvm.ptr") else (TYPES[text], 0)


@dataclass
class Step:
    """One operation: names of its results, names of its operands, regions of `scf.if`, `scf.for` and `scf.while`. `constant`
    caches its value if that never changes."""

    name: str
    text: str
    results: list[str]
    operands: list[str]
    regions: list[list[Step]] = field(default_factory=list)
    constant: list[Array] | None = None


def parse(lines: list[str]) -> list[Step]:
    """Steps up to the closing brace of the block, which is consumed too; `lines` is in reverse."""
    steps: list[Step] = []
    while lines:
        line = lines.pop().strip()
        if line.startswith("^"):  # arguments of a block
            steps.append(Step("block", line, re.findall(r"(%\w+):", line), []))
            continue
        if line.startswith("}"):
            lines.append(line)
            return steps
        results_text, text = line.split(" = ", 1) if re.match(r"%[\w:]+ = ", line) else ("", line)
        base, _, count = results_text.partition(":")
        results = [f"{base}#{i}" for i in range(int(count))] if count else [base] if base else []
        name = re.match(r"[\w.]+", text)
        assert name, line
        step = Step(name[0], text, results, re.findall(r"%[\w#]+", text))
        while lines and text.endswith("{"):
            step.regions.append(parse(lines))
            text = lines.pop()
        steps.append(step)
    return steps


def unsigned(value: Array) -> Array:
    return value.view(np.dtype(f"u{value.dtype.itemsize}")) if value.dtype.kind == "i" else value


PARTIAL = ("sdiv", "srem", "udiv", "urem", "shl", "lshr", "ashr")
"""Operations that LLVM defines only for some operands."""


def is_undefined(name: str, left: Array, right: Array) -> NDArray[np.bool_]:
    """The operands for which one of `PARTIAL` is undefined: division by zero, the minimum divided by -1, a shift by the width
    or more."""
    if name in ("sdiv", "srem"):
        return (right == 0) | ((right == -1) & (left == np.iinfo(left.dtype).min))
    if name in ("udiv", "urem"):
        return right == 0
    return unsigned(right) >= 8 * right.dtype.itemsize


def truncated(left: Array, right: Array) -> Array:
    """Division toward zero; a zero divisor is refused earlier."""
    quotient = left // np.where(right == 0, 1, right)
    return quotient + ((quotient < 0) & (quotient * right != left))


def bits_as(value: Array, target: tuple[np.dtype, int]) -> Array:
    result = np.ascontiguousarray(value).view(target[0])
    return result.reshape(len(value), target[1]) if target[1] else result.reshape(len(value))


def convert_8_bit_floats(text: str, inputs: list[Array]) -> Array:
    """`cvt` between two f32 or two f16 and two 8-bit floats; conversions to 8 bits saturate."""
    dtype = np.dtype(ml_dtypes.float8_e4m3fn if "e4m3x2" in text else ml_dtypes.float8_e5m2)
    if len(inputs) == 1:
        pair = np.ascontiguousarray(inputs[0]).view(dtype).reshape(-1, 2).astype(np.float16)
        return np.ascontiguousarray(pair).view(np.int32)[:, 0]
    limit = float(ml_dtypes.finfo(dtype).max)
    pair = np.stack([inputs[1], inputs[0]], axis=1)
    return np.ascontiguousarray(np.clip(pair, -limit, limit).astype(dtype)).view(np.int16)[:, 0]


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
    "shl": np.left_shift, "ashr": np.right_shift, "lshr": lambda a, b: unsigned(a) >> unsigned(b),
    "udiv": lambda a, b: unsigned(a) // np.maximum(unsigned(b), 1),
    "urem": lambda a, b: unsigned(a) % np.maximum(unsigned(b), 1),
    "sdiv": truncated, "srem": lambda a, b: a - truncated(a, b) * b,
}  # fmt: skip
CASTS = {
    "fpext": lambda a, t: a.astype(t[0]), "fptrunc": lambda a, t: a.astype(t[0]), "sitofp": lambda a, t: a.astype(t[0]),
    "uitofp": lambda a, t: unsigned(a).astype(t[0]),
    "sext": lambda a, t: a.astype(t[0]), "trunc": lambda a, t: (a & 1).astype(t[0]) if t[0].kind == "b" else a.astype(t[0]),
    "zext": lambda a, t: unsigned(a).astype(t[0]), "bitcast": bits_as,
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal,
    "ult": lambda a, b: unsigned(a) < unsigned(b), "ule": lambda a, b: unsigned(a) <= unsigned(b),
    "ugt": lambda a, b: unsigned(a) > unsigned(b), "uge": lambda a, b: unsigned(a) >= unsigned(b),
    "oeq": np.equal, "une": np.not_equal, "olt": np.less, "ole": np.less_equal, "ogt": np.greater, "oge": np.greater_equal,
    "uno": lambda a, b: np.isnan(a) | np.isnan(b), "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}  # fmt: skip
APPROXIMATE = {
    "ex2": np.exp2, "lg2": np.log2, "rsqrt": lambda a: 1 / np.sqrt(a), "rcp": lambda a: 1 / a, "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "sqrt": np.sqrt,
}  # fmt: skip
INTRINSICS = {
    "fabs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "roundeven": np.rint,
    "fma": lambda a, b, c: a * b + c, "smax": np.maximum, "smin": np.minimum,
}  # fmt: skip


def minimum_number(a: Array, b: Array) -> Array:
    """`min.f32` of the PTX ISA: if one operand is NaN the other is returned, and -0 is less than +0."""
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where((a < b) | ((a == b) & np.signbit(a)), a, b)))


NUMBERS = {"llvm.minimumnum.f32": minimum_number, "llvm.maximumnum.f32": lambda a, b: -minimum_number(-a, -b)}


def multiply_high(text: str, left: Array, right: Array) -> Array:
    """`mul.hi` of the PTX ISA, in Python's integers."""
    kind = re.search(r"mul\.hi\.([su])(32|64)", text)
    assert kind, text
    sides = [(unsigned(side) if kind[1] == "u" else side).astype(object) for side in (left, right)]
    width = int(kind[2])
    return np.array([(a * b >> width) & ((1 << width) - 1) for a, b in zip(*sides, strict=True)], f"u{width // 8}").view(
        left.dtype
    )


def to_integer(text: str, value: Array) -> Array:
    """`cvt.rzi` of the PTX ISA: saturates; NaN gives 0, or the highest bit alone for 64-bit results."""
    kind = re.search(r"cvt\.rzi\.([su])(32|64)\.f32", text)
    assert kind, text
    info = np.iinfo(f"{'u' if kind[1] == 'u' else ''}int{kind[2]}")
    nan_result = 0 if kind[2] == "32" else int(info.min) or 2**63
    values = [
        nan_result if np.isnan(x) else info.max if x >= info.max else info.min if x <= info.min else int(x) for x in value
    ]
    return np.array(values, info.dtype).view(f"int{kind[2]}")


ATOMIC = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda _, new: new, "fmax": NUMBERS["llvm.maximumnum.f32"],
    "fmin": NUMBERS["llvm.minimumnum.f32"]}  # fmt: skip
