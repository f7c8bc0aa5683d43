"""call of `vprintf`, the only function that a kernel may call (CUDA programming guide, "Formatted output").

Its first parameter is the generic address of a format that ends with a zero byte, its second that of the arguments: fields of a
structure in C, 4 or 8 bytes each. The texts that lanes write are in `Machine.printed`, in the order of execution; those of one
instruction in the order of the lanes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Lanes
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.sources import Step
from tilec.emulator.ptx.syntax import Group, Symbol

_SPECIFIER: Final = re.compile(r"%([-+ #0]*\d*(?:\.\d+)?)(hh|h|ll|l|j|z|t|L)?([diuoxXcfFeEgGaA%])")
_WIDE: Final = ("ll", "l", "j", "z", "t")
_FLOATS: Final = "fFeEgGaA"


@lanewise("call")
def call(d: Decoder) -> Step:
    d.flag("uni")
    d.finish(3)
    result, function, parameters = d.operands
    if not isinstance(function, Symbol) or function.name != "vprintf":
        raise d.unsupported("the only function that can be called is vprintf")
    if not isinstance(result, Group) or not isinstance(parameters, Group) or len(parameters.items) != 2:
        raise d.unsupported("vprintf has two parameters and a result")
    (returned,) = result.items
    variables = [*parameters.items, returned]
    if not all(isinstance(one, Symbol) and one.name in d.machine.windows.local_offsets for one in variables):
        raise d.unsupported("the parameters of a call are variables of the kernel")
    format_at, arguments_at, returned_at = (d.symbol_address(one) for one in variables if isinstance(one, Symbol))
    printer = _Printer(d)

    def step(frame: Frame) -> None:
        everywhere = np.full(frame.n, True) if frame.mask is None else frame.mask
        formats = printer.load(frame, np.full(frame.n, format_at), "local", 8, everywhere, "the format of vprintf")
        arguments = printer.load(frame, np.full(frame.n, arguments_at), "local", 8, everywhere, "the arguments of vprintf")
        texts: dict[int, str] = {}
        counts = np.zeros(frame.n, np.uint32)
        for pointer in np.unique(formats[everywhere]):
            chosen = everywhere & (formats == pointer)
            text = printer.text(frame, int(pointer), chosen)
            texts |= printer.written(frame, text, arguments.view(np.int64), chosen, counts)
        d.machine.printed += [texts[position] for position in sorted(texts)]
        printer.store(frame, returned_at, counts)

    return step


class _Printer:
    """Reads what one call writes."""

    def __init__(self, d: Decoder) -> None:
        self.d, self.machine, self.instruction = d, d.machine, d.instruction

    def load(
        self, frame: Frame, address: Lanes, space: str, size: int, chosen: NDArray[np.bool_], what: str
    ) -> NDArray[Any]:  # fmt: skip
        """Unsigned integers of `size` bytes in each of the chosen lanes."""
        found = self.machine.locator.locate(
            frame, address.astype(np.int64), None, space, size, self.instruction, write=False, mask=chosen
        )
        (values,), (poison,) = self.machine.accesses.load(frame, found, size, 1, self.instruction)
        if poison is not None:
            defined = np.where(chosen, np.broadcast_to(poison, frame.n), 0).astype(np.uint8)
            self.machine.faults.poison(what, self.instruction, frame, defined)
        return np.broadcast_to(values, frame.n)

    def store(self, frame: Frame, address: int, counts: NDArray[np.uint32]) -> None:
        """The result: how many arguments were written."""
        where = np.full(frame.n, address, np.int64)
        found = self.machine.locator.locate(frame, where, None, "local", 4, self.instruction, write=True)
        self.machine.accesses.store(frame, found, 4, [counts], [None], self.instruction)

    def text(self, frame: Frame, pointer: int, chosen: NDArray[np.bool_]) -> str:
        """The text that ends with a zero byte at a generic address; a fault of bounds if there is none."""
        memory, lane = self.machine.memory, frame.lanes[np.flatnonzero(chosen)[:1]]
        index = int(self.machine.windows.resolve(lane, np.array([pointer], np.int64), "generic")[0])
        allocation = memory.allocation_at(index) if index >= 0 else None
        data = b"" if allocation is None else bytes(memory.data[index : allocation.end])
        if b"\0" not in data:
            self.machine.faults.lanes("bounds", "the format of vprintf is no text", self.instruction, frame, chosen)
            return ""
        return data[: data.index(b"\0")].decode(errors="replace")

    def written(
        self, frame: Frame, text: str, arguments: Lanes, chosen: NDArray[np.bool_], counts: NDArray[np.uint32]
    ) -> dict[int, str]:
        """The text of each chosen lane, by its position in the frame; `counts` gets the number of arguments."""
        columns: list[list[str]] = []
        pieces: list[str] = [""]
        at = end = 0
        for match in _SPECIFIER.finditer(text):
            pieces[-1] += self._plain(text[end : match.start()])
            end = match.end()
            flags, length, kind = match.groups()
            if kind == "%":
                pieces[-1] += "%"
                continue
            size = 8 if kind in _FLOATS or length in _WIDE else 4
            at += -at % size
            raw = self.load(frame, arguments + at, "generic", size, chosen, "an argument of vprintf")
            at += size
            columns.append([_formatted(flags, kind, value) for value in raw[chosen]])
            pieces.append("")
        pieces[-1] += self._plain(text[end:])
        counts[chosen] = len(columns)
        return {
            int(position): "".join(piece + field for piece, field in zip(pieces, (*fields, ""), strict=True))
            for position, *fields in zip(np.flatnonzero(chosen), *columns, strict=True)
        }

    def _plain(self, text: str) -> str:
        if "%" in text:
            raise self.d.unsupported(f"the format of vprintf has an unknown specifier in {text!r}")
        return text


def _formatted(flags: str, kind: str, value: Any) -> str:
    """A field as C writes it."""
    if kind in "aA":
        return float(value.view(np.float64)).hex()
    if kind in _FLOATS:
        return f"%{flags}{kind}" % float(value.view(np.float64))
    if kind == "c":
        return chr(int(value) & 255)
    number = int(value.view(f"i{value.itemsize}") if kind in "di" else value)
    return f"%{flags}{'d' if kind == 'u' else kind}" % number
