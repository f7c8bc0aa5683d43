"""Which types the operations of `Builder` take, and the errors for those they do not."""

from __future__ import annotations

from functools import cache
from typing import Final

from tilec.ir.core import VerifyError
from tilec.mlir.types import GLOBAL, SHARED, SsaValue, Type, f32, i1, i16, i32, i64

_LETTERS: Final = {"r": (i32,), "l": (i64, GLOBAL, SHARED), "h": (i16,), "f": (f32,), "b": (i1,)}
"""Register types of the constraint letters of inline PTX."""


def wrong_type(kind: str, value: SsaValue) -> VerifyError:
    return VerifyError(f"MLIR: `{kind}` takes no {value.name} of {value.type}")


def type_mismatch(kind: str, left: SsaValue, right: SsaValue) -> VerifyError:
    return VerifyError(f"MLIR: `{kind}` takes no {left.name} of {left.type} with {right.name} of {right.type}")


def is_of_floats(type: Type) -> bool:
    element = type.parts[0] if type.kind == "vector" else type
    return element.kind == "float"


@cache
def converts(kind: str, source: Type, target: Type) -> bool:
    """Whether the conversion `kind` is defined from `source` to `target`."""
    kinds, wider = (source.kind, target.kind), target.bits > source.bits
    match kind:
        case "zext" | "sext":
            return kinds == ("integer", "integer") and wider
        case "trunc":
            return kinds == ("integer", "integer") and target.bits < source.bits
        case "fpext":
            return kinds == ("float", "float") and wider
        case "fptrunc":
            return kinds == ("float", "float") and target.bits < source.bits
        case "sitofp" | "uitofp":
            return kinds == ("integer", "float")
        case "ptrtoint":
            return kinds == ("pointer", "integer")
        case "inttoptr":
            return kinds == ("integer", "pointer")
        case _:
            assert kind == "bitcast", kind
            return source.bits == target.bits > 0


def check_constraints(constraints: str, results: list[Type], operands: list[Type]) -> None:
    """VerifyError unless the letters match the types, results before operands."""
    outputs, inputs = _letters(constraints)
    fits = len(outputs) == len(results) and len(inputs) == len(operands)
    pairs = (*zip(outputs, results, strict=False), *zip(inputs, operands, strict=False))
    if not fits or any(type not in _LETTERS[letter] for letter, type in pairs):
        types = f"({', '.join(map(str, operands))}) -> ({', '.join(map(str, results))})"
        raise VerifyError(f"MLIR: inline PTX with `{constraints}` is given {types}")


@cache
def _letters(constraints: str) -> tuple[list[str], list[str]]:
    """The letters of results and of operands; an operand tied to a result has that result's letter."""
    parts = [part for part in constraints.split(",") if part and not part.startswith("~")]
    outputs = [part[1:] for part in parts if part.startswith("=")]
    inputs = [outputs[int(part)] if part.isdigit() else part for part in parts if not part.startswith("=")]
    return outputs, inputs
