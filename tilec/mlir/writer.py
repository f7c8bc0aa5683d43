"""Where operations are written: lines in order, and fresh SSA names.

In: the text of an operation, made by `tilec.mlir` alone, and the type of its result. Out: the lines, and typed values. A
constant is written once where it is in scope: asked for again, it is the value that is there. MLIR would find the same, after
reading a text that is longer by a third. Other operations stay as they are asked for: what a pass folds depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

from tilec.ir.core import VerifyError
from tilec.mlir.types import SsaValue, Type, i1, i32

_new = cast("Callable[[type[SsaValue], tuple[str, Type]], SsaValue]", getattr(tuple, "__new__"))  # noqa: B009 typed here
"""Makes an `SsaValue` in half the time that calling it takes; most of a kernel's text is such values."""


class Writer:
    """Operations one a line, and the regions of `scf`. Values that a region's operations make are known in it alone."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._constants: dict[str, SsaValue] = {}  # those in scope, by their text
        self._entered: list[str] = []  # those texts in order, for the end of a region
        self._found = 0  # how often a constant was in scope
        self.line = 0  # of the tile IR's text, 0 where operations have none

    def _name(self) -> str:
        """A fresh SSA name."""
        self._count += 1
        return f"%{self._count}"

    def _value(self, text: str, type: Type) -> SsaValue:
        """Append an operation with one result."""
        self._count += 1
        name = f"%{self._count}"
        self.lines.append(f"{name} = {text}")
        return _new(SsaValue, (name, type))

    def _constant(self, text: str, type: Type) -> SsaValue:
        """The result of an operation without operands, which is appended where none of its text is in scope."""
        known = self._constants.get(text)
        if known is None:
            known = self._constants[text] = self._value(text, type)
            self._entered.append(text)
        else:
            self._found += 1
        return known

    @property
    def operations(self) -> int:
        """What was asked for: the lines, and the constants that were in scope."""
        return len(self.lines) + self._found

    def _effect(self, text: str) -> None:
        """Append an operation without results, or a part of one with regions."""
        self.lines.append(text)

    @contextmanager
    def _region(self) -> Generator[None]:
        """What is written inside is in scope there alone."""
        outside = len(self._entered)
        yield
        for text in self._entered[outside:]:
            del self._constants[text]
        del self._entered[outside:]

    def at_line(self, line: int) -> None:
        """What follows comes from this line of the tile IR's text."""
        if line != self.line:
            self.line = line
            self.lines.append(f"// line {line}")

    @contextmanager
    def replicated(self) -> Generator[None]:
        """Stores that are written inside bring the same value wherever several threads write to one place."""
        self.lines.append(f"// line {self.line} replicated")
        yield
        self.lines.append(f"// line {self.line}")

    def constant(self, value: int, type: Type = i32) -> SsaValue:
        """An integer that its type holds, as a signed or an unsigned number."""
        if type.kind != "integer" or not -(1 << type.bits - 1) <= value < 1 << type.bits:
            raise VerifyError(f"MLIR: no constant {value} of {type}")
        return self._constant(f"llvm.mlir.constant({value} : {type.text}) : {type.text}", type)

    @contextmanager
    def where(self, condition: SsaValue | None) -> Generator[None]:
        """What is written inside runs where `condition` (i1) holds; everywhere where it is None."""
        if condition is None:
            yield
            return
        self._effect(f"scf.if {_bit(condition)} {{")
        with self._region():
            yield
        self._effect("}")

    def either(self, condition: SsaValue, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Writes what `then` writes to run where `condition` (i1) holds, and what `otherwise` does to run where not."""
        self._effect(f"scf.if {_bit(condition)} {{")
        with self._region():
            then()
        self._effect("} else {")
        with self._region():
            otherwise()
        self._effect("}")

    def choose(self, condition: SsaValue, then: Callable[[], SsaValue], otherwise: Callable[[], SsaValue]) -> SsaValue:
        """The value that one of two regions makes."""
        name = self._name()
        (made,) = self._branch(f"{name} = ", ", ", condition, lambda: [then()], lambda: [otherwise()])
        return SsaValue(name, made)

    def choose_all(
        self, condition: SsaValue, then: Callable[[], list[SsaValue]], otherwise: Callable[[], list[SsaValue]]
    ) -> list[SsaValue]:
        """The values that one of two regions makes, as many and of the same types in both."""
        name = self._name()
        types = self._branch(f"{name}:{{}} = ", ", ", condition, then, otherwise)
        return [SsaValue(f"{name}#{i}", type) for i, type in enumerate(types)]

    def branch(
        self, condition: SsaValue, then: Callable[[], list[SsaValue]], otherwise: Callable[[], list[SsaValue]]
    ) -> list[SsaValue]:
        """`choose_all`, of any number of values, none included."""
        name = self._name()
        types = self._branch(f"{name}:{{}} = ", ",", condition, then, otherwise)
        return _results(name, types)

    def _branch(
        self,
        head: str,
        between: str,
        condition: SsaValue,
        then: Callable[[], list[SsaValue]],
        otherwise: Callable[[], list[SsaValue]],
    ) -> list[Type]:
        """Types of the results; `{}` in `head` stands for how many there are."""
        place = len(self.lines)
        self._effect("")  # the head names types, which are known once the first region is written
        with self._region():
            made = then()
        types = [value.type for value in made]
        text = between.join(type.text for type in types)
        result = f"{head.format(len(types))}scf.if {_bit(condition)} -> ({text}) {{"
        self.lines[place] = result if types else f"scf.if {_bit(condition)} {{"
        self._yield(made)
        self._effect("} else {")
        with self._region():
            other = otherwise()
        if [value.type for value in other] != types:
            raise VerifyError(f"MLIR: a branch makes ({text}), or ({', '.join(value.type.text for value in other)})")
        self._yield(other)
        self._effect("}")
        return types

    def loop(
        self,
        lower: SsaValue,
        upper: SsaValue | int,
        step: SsaValue | int,
        start: Sequence[SsaValue],
        body: Callable[[SsaValue, list[SsaValue]], list[SsaValue]],
        unsigned: bool = False,
    ) -> list[SsaValue]:
        """The values carried by a loop over `lower .. upper` (i32), after it; `body` gets the index and the values of a turn,
        and gives those of the next. `unsigned`: the bounds have no sign, and the step may go past 2^31 - 1."""
        types = [value.type for value in start]
        variable, name = self._name(), self._name()
        carried = [SsaValue(self._name(), type) for type in types]
        step = self.constant(step) if isinstance(step, int) else step
        upper = self.constant(upper) if isinstance(upper, int) else upper
        for bound in (lower, upper, step):
            if bound.type is not i32:
                raise VerifyError(f"MLIR: a loop is bounded by {bound.name} of {bound.type}")
        pairs = ", ".join(f"{value.name} = {first.name}" for value, first in zip(carried, start, strict=True))
        text = ", ".join(type.text for type in types)
        head = f"{name}:{len(types)} = " if types else ""
        iteration = f" iter_args({pairs}) -> ({text})" if types else ""
        bounds = f"{lower.name} to {upper.name} step {step.name}"
        self._effect(f"{head}scf.for {'unsigned ' if unsigned else ''}{variable} = {bounds}{iteration} : i32 {{")
        with self._region():
            after = body(SsaValue(variable, i32), carried)
        if [value.type for value in after] != types:
            raise VerifyError(f"MLIR: a loop carries ({text}), and a turn ({', '.join(value.type.text for value in after)})")
        self._yield(after)
        self._effect("}")
        return _results(name, types)

    def _yield(self, values: list[SsaValue]) -> None:
        if values:
            names, types = ", ".join([value.name for value in values]), ", ".join([value.type.text for value in values])
            self._effect(f"scf.yield {names} : {types}")


def _bit(condition: SsaValue) -> str:
    """The name of a condition."""
    if condition.type is not i1:
        raise VerifyError(f"MLIR: {condition.name} of {condition.type} is no condition")
    return condition.name


def _results(name: str, types: list[Type]) -> list[SsaValue]:
    """The results of an operation that makes several; one alone goes by the name without a number."""
    return [SsaValue(f"{name}#{i}" if len(types) > 1 else name, type) for i, type in enumerate(types)]
