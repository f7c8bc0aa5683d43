"""The instruction descriptor of `tcgen05.mma`: 32 bits and a kind in, formats, shape and flags out.

Source: PTX ISA, "Instruction descriptor" (tables for each `.kind`). A field that the tables reserve or that the kind does not
have must be zero. `problem` names the field at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SIXTEEN: Final = {0: "f16", 1: "bf16"}
_NARROW: Final = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
FORMATS: Final[dict[str, dict[int, str]]] = {
    "f16": _SIXTEEN, "tf32": {2: "tf32"}, "f8f6f4": _NARROW, "i8": {0: "u8", 1: "s8"}, "mxf8f6f4": _NARROW,
    "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"},
}  # fmt: skip
"""Formats of A and B by `.kind` and the number in their field."""
DEPTH: Final = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""Elements along K of one instruction, by kind."""
RESULTS: Final = {0: "f16", 1: "f32", 2: "s32"}
_TURNABLE: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """Fields as numbers (`a`, `b`: the formats; `d`: the result's; `scale_a`, `scale_b`: the ids of the scale factors), `rows`
    M, `columns` N, and the bits that the kind reserves."""

    kind: str
    sparse: bool
    saturate: bool
    a: int
    b: int
    d: int
    negate: tuple[bool, bool]
    turned: tuple[bool, bool]
    columns: int
    rows: int
    scale_a: int
    scale_b: int
    scale_is_ue8m0: bool
    shift: int
    reserved: int

    @classmethod
    def read(cls, bits: int, kind: str) -> InstructionDescriptor:
        """The fields of a descriptor for `.kind::` `kind`."""
        scaled, dense4 = kind.startswith("mx"), kind in ("mxf4", "mxf4nvf4")
        reserved = bits & (0x40 if scaled else 0x20800040)
        reserved |= bits & (0x8 if kind != "i8" else 0)
        if scaled:
            reserved |= bits & (0x8000_0000 if kind == "mxf8f6f4" else 0)
            reserved |= bits & (0x1000 if dense4 else 0)
        reserved |= bits & 0x3 if not bits & 4 else 0
        return cls(
            kind=kind,
            sparse=bool(bits & 4),
            saturate=kind == "i8" and bool(bits & 8),
            a=bits >> 7 & 7,
            b=bits >> 10 & (3 if dense4 else 7),
            d=1 if scaled else bits >> 4 & 3,
            negate=(bool(bits & 0x2000), bool(bits & 0x4000)),
            turned=(bool(bits & 0x8000), bool(bits & 0x10000)),
            columns=(bits >> 17 & 63) << 3,
            rows=(bits >> 24 & 31) << 4,
            scale_a=bits >> 29 & 3 if scaled else 0,
            scale_b=bits >> 4 & 3 if scaled else 0,
            scale_is_ue8m0=bool(bits & 1 << 23),
            shift=0 if scaled else bits >> 30,
            reserved=reserved | (bits & 1 << 31 if dense4 else 0),
        )

    @property
    def formats(self) -> tuple[str, str]:
        """Names of the formats of A and B; KeyError for numbers that the kind does not have."""
        return FORMATS[self.kind][self.a], FORMATS[self.kind][self.b]

    @property
    def result(self) -> str:
        """The format of D."""
        return RESULTS[self.d]

    def problem(self, pair: bool, weight: bool) -> str | None:
        """The field that an instruction cannot use, as a clause; None if there is none. `pair`: `.cta_group::2`; `weight`:
        `tcgen05.mma.ws`."""
        known = FORMATS[self.kind]
        if self.reserved:
            return f"sets bits {self.reserved:#x}, which .kind::{self.kind} reserves"
        for name, number in (("A", self.a), ("B", self.b)):
            if number not in known:
                return f"has {number} as the format of {name}, which .kind::{self.kind} does not have"
        if self.shift and not weight:
            return "has a maximum shift of B, which is for .ws"
        return self._result_problem() or self._operand_problem() or self._shape_problem(pair, weight) or self._scale_problem()

    def _result_problem(self) -> str | None:
        allowed = {"f16": (1,), "tf32": (1,), "f8f6f4": (0, 1), "i8": (2,)}.get(self.kind, (1,))
        if self.kind == "f16" and self.formats == ("f16", "f16"):
            allowed = (0, 1)
        if self.d not in allowed:
            return f"has {self.d} as the format of D, which .kind::{self.kind} with these inputs does not have"
        if self.kind == "f16" and self.a != self.b:
            return "has different formats of A and B in .kind::f16"
        return None

    def _operand_problem(self) -> str | None:
        if self.kind == "i8" and any(self.negate):
            return "negates an integer operand"
        for name, turned, kind in zip("AB", self.turned, self.formats, strict=True):
            if turned and kind not in _TURNABLE:
                return f"makes {name} MN-major in the format {kind}"
        return None

    def _shape_problem(self, pair: bool, weight: bool) -> str | None:
        rows, columns = self.rows, self.columns
        if weight:
            legal = rows in (32, 64, 128) and columns in (64, 128, 256)
        elif pair:
            legal = rows in (128, 256) and 32 <= columns <= 256 and columns % 32 == 0
            if self.kind != "i8" and not (self.turned[1] and self.kind == "f8f6f4"):
                legal = rows in (128, 256) and 16 <= columns <= 256 and columns % 16 == 0
        else:
            scaled = self.kind.startswith("mx")
            step = 16 if self.turned[1] and self.kind == "f8f6f4" else 8
            legal = rows in ((128,) if scaled else (64, 128)) and 8 <= columns <= 256 and columns % step == 0
            if self.kind == "i8" and columns > 32:
                legal = legal and columns % 16 == 0
        if legal:
            return None
        where = ".ws" if weight else f".cta_group::{1 + pair}"
        return f"has M {rows} and N {columns}, a shape that .kind::{self.kind} with {where} does not have"

    def _scale_problem(self) -> str | None:
        for name, number in (("A", self.scale_a), ("B", self.scale_b)):
            if self.kind in ("mxf4", "mxf4nvf4") and number % 2:
                return f"has {number} as the scale factor id of {name}, which is 0 or 2"
        if self.kind in ("mxf4", "mxf8f6f4") and not self.scale_is_ue8m0:
            return f"has ue4m3 scale factors, which .kind::{self.kind} does not have"
        return None
