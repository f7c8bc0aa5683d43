"""Text of operations in order, with fresh SSA names.

In: the text of an operation, made only by `tilec.mlir`, and the type of its result. Out: lines, and typed values. A constant
is written once per scope: a second request returns the same value. MLIR would deduplicate it too, but only after reading a
text that is longer by a third. Other operations are not deduplicated, because constant folding in passes depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

from tilec.ir.core import VerifyError
from tilec.mlir.types import SsaValue, Type, i1, i32

_new = cast("Callable[[type[SsaValue], tuple[str, Type]], SsaValue]", getattr(tuple, "__new__"))  # noqa: B009 typed here
"""Makes an `SsaValue` in half the time of a call of the class; these make up most of a kernel's text."""


class Writer:
    """Operations, one a line, and the regions of `scf`. Values defined in a region are in scope only there."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._constants: dict[str, SsaValue] = {}  # those in scope, by their text
        self._in_scope: list[str] = []  # those texts in order of creation, so that the end of a region can drop its own
        self._reused_constants = 0  # number of requests for a constant in scope
        self.line = 0  # current line of the tile IR's text, 0 if none

    def _name(self) -> str:
        self._count += 1
        return f"%{self._count}"

    def _value(self, text: str, type: Type) -> SsaValue:
        """Append an operation with one result."""
        self._count += 1
        name = f"%{self._count}"
        self.lines.append(f"{name} = {text}")
        return _new(SsaValue, (name, type))

    def _constant(self, text: str, type: Type) -> SsaValue:
        """The result of an operation without operands, which is appended only if the same text is not in scope."""
        value = self._constants.get(text)
        if value is None:
            value = self._constants[text] = self._value(text, type)
            self._in_scope.append(text)
        else:
            self._reused_constants += 1
        return value

    @property
    def operations(self) -> int:
        """Number of operations requested: the lines, and the constants that were in scope."""
        return len(self.lines) + self._reused_constants

    def _effect(self, text: str) -> None:
        """Append an operation without results, or a part of an operation with regions."""
        self.lines.append(text)

    @contextmanager
    def _region(self) -> Generator[None]:
        """Constants written inside are in scope only there."""
        outer_count = len(self._in_scope)
        yield
        for text in self._in_scope[outer_count:]:
            del self._constants[text]
        del self._in_scope[outer_count:]

    def at_line(self, line: int) -> None:
        """Operations from here on belong to this line of the tile IR's text."""
        if line != self.line:
            self.line = line
            self.lines.append(f"// line {line}")

    @contextmanager
    def replicated(self) -> Generator[None]:
        """Stores inside write the same value wherever several threads write the same address."""
        self.lines.append(f"// line {self.line} replicated")
        yield
        self.lines.append(f"// line {self.line}")

    def constant(self, value: int, type: Type = i32) -> SsaValue:
        """An integer constant that fits its type, as a signed or as an unsigned number."""
        if type.kind != "integer" or not -(1 << type.bits - 1) <= value < 1 << type.bits:
            raise VerifyError(f"MLIR: no constant {value} of {type}")
        return self._constant(f"llvm.mlir.constant({value} : {type.text}) : {type.text}", type)

    @contextmanager
    def where(self, condition: SsaValue | None) -> Generator[None]:
        """Operations inside run only if `condition` (i1) is true, or always if it is None."""
        if condition is None:
            yield
            return
        self._effect(f"scf.if {_bit(condition)} {{")
        with self._region():
            yield
        self._effect("}")

    def either(self, condition: SsaValue, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """The operations of `then` run if `condition` (i1) is true, those of `otherwise` if it is false."""
        self._effect(f"scf.if {_bit(condition)} {{")
        with self._region():
            then()
        self._effect("} else {")
        with self._region():
            otherwise()
        self._effect("}")

    def choose(self, condition: SsaValue, then: Callable[[], SsaValue], otherwise: Callable[[], SsaValue]) -> SsaValue:
        """The value of one of two regions."""
        name = self._name()
        (result_type,) = self._branch(f"{name} = ", ", ", condition, lambda: [then()], lambda: [otherwise()])
        return SsaValue(name, result_type)

    def choose_all(
        self, condition: SsaValue, then: Callable[[], list[SsaValue]], otherwise: Callable[[], list[SsaValue]]
    ) -> list[SsaValue]:
        """The values of one of two regions, which yield the same number and types."""
        name = self._name()
        types = self._branch(f"{name}:{{}} = ", ", ", condition, then, otherwise)
        return [SsaValue(f"{name}#{i}", type) for i, type in enumerate(types)]

    def branch(
        self, condition: SsaValue, then: Callable[[], list[SsaValue]], otherwise: Callable[[], list[SsaValue]]
    ) -> list[SsaValue]:
        """`choose_all` for any number of values, including none."""
        name = self._name()
        types = self._branch(f"{name}:{{}} = ", ",", condition, then, otherwise)
        return _results(name, types)

    def _branch(
        self,
        result_prefix: str,
        separator: str,
        condition: SsaValue,
        then: Callable[[], list[SsaValue]],
        otherwise: Callable[[], list[SsaValue]],
    ) -> list[Type]:
        """Types of the results; `{}` in `result_prefix` stands for their number."""
        line_index = len(self.lines)
        self._effect("")  # placeholder: the head contains types that are known only after the first region
        with self._region():
            then_values = then()
        types = [value.type for value in then_values]
        text = separator.join(type.text for type in types)
        result = f"{result_prefix.format(len(types))}scf.if {_bit(condition)} -> ({text}) {{"
        self.lines[line_index] = result if types else f"scf.if {_bit(condition)} {{"
        self._yield(then_values)
        self._effect("} else {")
        with self._region():
            otherwise_values = otherwise()
        if [value.type for value in otherwise_values] != types:
            raise VerifyError(f"MLIR: a branch makes ({text}), or ({', '.join(value.type.text for value in otherwise_values)})")
        self._yield(otherwise_values)
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
        """The values carried by a loop over `lower .. upper` (i32), after it. `body` takes the index and the carried values of
        an iteration and returns the next ones. `unsigned`: the bounds are unsigned, and the step may exceed 2^31 - 1."""
        types = [value.type for value in start]
        variable, name = self._name(), self._name()
        carried = [SsaValue(self._name(), type) for type in types]
        step = self.constant(step) if isinstance(step, int) else step
        upper = self.constant(upper) if isinstance(upper, int) else upper
        for bound in (lower, upper, step):
            if bound.type is not i32:
                raise VerifyError(f"MLIR: a loop is bounded by {bound.name} of {bound.type}")
        pairs = ", ".join(f"{value.name} = {initial.name}" for value, initial in zip(carried, start, strict=True))
        text = ", ".join(type.text for type in types)
        result_prefix = f"{name}:{len(types)} = " if types else ""
        iter_args = f" iter_args({pairs}) -> ({text})" if types else ""
        bounds = f"{lower.name} to {upper.name} step {step.name}"
        self._effect(f"{result_prefix}scf.for {'unsigned ' if unsigned else ''}{variable} = {bounds}{iter_args} : i32 {{")
        with self._region():
            yielded = body(SsaValue(variable, i32), carried)
        if [value.type for value in yielded] != types:
            raise VerifyError(f"MLIR: a loop carries ({text}), and a turn ({', '.join(value.type.text for value in yielded)})")
        self._yield(yielded)
        self._effect("}")
        return _results(name, types)

    def loop_while(
        self,
        lower: SsaValue,
        upper: SsaValue,
        step: SsaValue,
        start: Sequence[SsaValue],
        condition_index: int,
        body: Callable[[SsaValue, list[SsaValue]], list[SsaValue]],
    ) -> list[SsaValue]:
        """As `loop`, but it also ends before an iteration in which the carried value number `condition_index` (i1) is false."""
        _bit(start[condition_index])
        types = [value.type for value in (lower, *start)]
        for bound in (lower, upper, step):
            if bound.type is not i32:
                raise VerifyError(f"MLIR: a loop is bounded by {bound.name} of {bound.type}")
        name = self._name()
        before, after = ([SsaValue(self._name(), type) for type in types] for _ in range(2))
        pairs = ", ".join(f"{value.name} = {first.name}" for value, first in zip(before, (lower, *start), strict=True))
        text = ", ".join(type.text for type in types)
        self._effect(f"{name}:{len(types)} = scf.while ({pairs}) : ({text}) -> ({text}) {{")
        with self._region():
            inside = self._value(f'llvm.icmp "slt" {before[0].name}, {upper.name} : i32', i1)
            runs = self._value(f"llvm.and {inside.name}, {before[1 + condition_index].name} : i1", i1)
            self._effect(f"scf.condition({runs.name}) {', '.join(value.name for value in before)} : {text}")
        self._effect("} do {")
        self._effect(f"^bb0({', '.join(f'{value.name}: {value.type.text}' for value in after)}):")
        with self._region():
            yielded = body(after[0], after[1:])
            yielded = [self._value(f"llvm.add {after[0].name}, {step.name} : i32", i32), *yielded]
        if [value.type for value in yielded] != types:
            raise VerifyError(f"MLIR: a loop carries ({text}), and a turn ({', '.join(value.type.text for value in yielded)})")
        self._yield(yielded)
        self._effect("}")
        return _results(name, types)[1:]

    def _yield(self, values: list[SsaValue]) -> None:
        if values:
            names, types = ", ".join([value.name for value in values]), ", ".join([value.type.text for value in values])
            self._effect(f"scf.yield {names} : {types}")


def _bit(condition: SsaValue) -> str:
    if condition.type is not i1:
        raise VerifyError(f"MLIR: {condition.name} of {condition.type} is not a condition")
    return condition.name


def _results(name: str, types: list[Type]) -> list[SsaValue]:
    """The results of an operation; a single result has the name without a number."""
    return [SsaValue(f"{name}#{i}" if len(types) > 1 else name, type) for i, type in enumerate(types)]
