"""Text form of the tile IR (`.tir`): one deterministic text per function, without source locations.

Dumps, golden files and the digests of the stage cache use it: two functions with the same text compile to the same bytes.
Values are numbered in program order; parameters keep their names. `tilec.ir.text.parser` reads the text back.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.core import Block, Function, Op, Value, attribute_text


def print_function(function: Function) -> str:
    """The text of a function, ending in a newline."""
    return "\n".join(_Printer(function).lines()) + "\n"


class _Printer:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.names: dict[int, str] = {id(p.value): f"%{p.name}" for p in function.parameters}
        self.count = 0

    def lines(self) -> Iterator[str]:
        function = self.function
        parameters = ", ".join(
            f"%{p.name}: {p.access.value + ' ' if p.access else ''}{p.value.type}" for p in function.parameters
        )
        yield f"kernel @{function.name}({parameters}) {{"
        constants = ", ".join(f"{name} = {attribute_text(value)}" for name, value in function.constants.items())
        yield f"  constants {{{constants}}}"
        yield f"  dims [{', '.join(function.dims)}]"
        yield f"  strides [{', '.join(function.strides)}]"
        yield f"  grid [{', '.join(map(str, function.grid))}]"
        if function.num_warps:
            yield f"  warps {function.num_warps}"
        if function.cluster > 1:
            yield f"  cluster {function.cluster}"
        yield from (f"  requires {precondition.condition}" for precondition in function.requires)
        for fact in function.values:
            yield f"  values %{fact.tensor} {fact.low} .. {fact.high}{''.join(f' {name}' for name in fact.flags)}"
        for promise in function.promises:
            above = f" above {', '.join(f'%{name}' for name in promise.above)}" if promise.above else ""
            yield (
                f"  ensures %{promise.tensor} {promise.low} .. {promise.high}{above}"
                f"{''.join(f' {name}' for name in promise.flags)}"
            )
        yield from (f"  resident %{resident.tensor}" for resident in function.residents)
        yield from (f"  unsafe {attribute_text(block.reason)}" for block in function.unsafe)
        yield from self.block(function.body, "  ")
        yield "}"

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for op in block.ops:
            yield from self.op(op, indent)

    def op(self, op: Op, indent: str) -> Iterator[str]:
        operands = ", ".join(self.names[id(value)] for value in op.operands)
        attributes = ", ".join(f"{name} = {attribute_text(value)}" for name, value in op.attributes().items())
        text = f"{op.opcode}{' ' + operands if operands else ''}{f' {{{attributes}}}' if attributes else ''}"
        regions = [list(self.region(region, indent)) for region in op.regions]
        results = [self.define(value) for value in op.results]
        results_text = f"{', '.join(results)} = " if results else ""
        types = f" : {', '.join(map(_type_text, op.results))}" if results else ""
        if not regions:
            yield f"{indent}{results_text}{text}{types}"
            return
        yield f"{indent}{results_text}{text}{types} {{"
        for position, region in enumerate(regions):
            if position:
                yield f"{indent}}} {{"
            yield from region
        yield f"{indent}}}"

    def region(self, region: Block, indent: str) -> Iterator[str]:
        if region.arguments:
            arguments = ", ".join(f"{self.define(value)}: {_type_text(value)}" for value in region.arguments)
            yield f"{indent}^({arguments})"
        yield from self.block(region, indent + "  ")

    def define(self, value: Value) -> str:
        name = f"%{self.count}"
        self.count += 1
        self.names[id(value)] = name
        return name


def _type_text(value: Value) -> str:
    return f"{value.type}{f' {value.layout}' if value.layout is not None else ''}"
