"""Small PTX programs for the tests: one value per thread, operands from tensors, results to tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator import Memory, Report, parse, run

Array = NDArray[Any]
BITS = {"pred": 32, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}


def bits_of(kind: str) -> int:
    """Bits of a register for `kind`, at least 16."""
    return BITS.get(kind) or max(16, int(kind[1:]))


def program(
    body: str,
    tensors: Sequence[str],
    *,
    registers: str = "",
    shared: int = 0,
    threads: int | None = None,
    target: str = "sm_90a",
    globals_: str = "",
) -> str:
    """An entry `k` with one pointer parameter a tensor, their generic addresses in %a0, %a1 ..., %tid.x in %t."""
    parameters = ",\n".join(f".param .u64 p{k}" for k in range(len(tensors)))
    loads = "\n".join(f"ld.param.u64 %a{k}, [p{k}];" for k in range(len(tensors)))
    return f"""
.version 8.6
.target {target}
.address_size 64
{globals_}
{".extern .shared .align 16 .b8 smem[];" if shared else ""}
.visible .entry k({parameters})
{f".reqntid {threads}" if threads else ""}
{{
.reg .pred %p<20>;
.reg .b16 %h<20>;
.reg .b32 %r<40>;
.reg .b64 %d<40>;
.reg .b64 %a<10>;
.reg .b32 %t;
{registers}
mov.u32 %t, %tid.x;
{loads}
{body}
ret;
}}
"""


def launch(
    text: str,
    tensors: Mapping[str, Array],
    *,
    threads: int = 32,
    grid: Sequence[int] = (1,),
    out: Sequence[str] = (),
    read_only: Sequence[str] = (),
    seed: int = 0,
    shared: int = 0,
    checked: bool = True,
    align: int = 16,
    resident: Collection[str] = (),
    **more: Any,
) -> Report:
    """Runs `k`; tensors in `out` start uninitialized."""
    memory = Memory()
    allocations = [
        memory.allocate(
            name,
            array,
            writable=name not in read_only,
            initialised=name not in out,
            checked=checked and name in out,
            align=align,
            resident=name in resident,
        )
        for name, array in tensors.items()
    ]
    return run(parse(text), "k", grid, (threads,), allocations, memory, dynamic_shared_bytes=shared, seed=seed, **more)


def evaluate(instruction: str, result: str, operands: Sequence[tuple[str, Array]]) -> Array:
    """`instruction` with {d}, {a}, {b}, {c} (and {e}) as registers, for every lane of equally long operand arrays (any dtype of
    the kind's size); the result as unsigned bits. A predicate is 0 or 1."""
    count = len(operands[0][1])
    names = "abce"
    tensors = {names[k]: np.ascontiguousarray(array) for k, (_, array) in enumerate(operands)}
    tensors["d"] = np.zeros(count, f"u{bits_of(result) // 8}")
    lines, registers = [], {}
    for k, (kind, array) in enumerate(operands):
        width = array.dtype.itemsize
        register = f"%op{k}"
        load = f"b{8 * width}"
        lines += [
            f".reg .b{max(16, 8 * width)} {register}_raw; .reg .b64 %at{k};",
            f"mad.wide.u32 %at{k}, %i, {width}, %a{k};",
            f"ld.global.{load} {register}_raw, [%at{k}];",
        ]
        if kind == "pred":
            lines.append(f".reg .pred {register}; setp.ne.b{max(16, 8 * width)} {register}, {register}_raw, 0;")
            registers[names[k]] = register
        else:
            registers[names[k]] = f"{register}_raw"
    bits = bits_of(result)
    registers["d"] = "%result"
    lines.append(f".reg .{'pred' if result == 'pred' else f'b{bits}'} %result;")
    lines.append(instruction.format(**registers))
    value = "%result"
    if result == "pred":
        lines.append(".reg .b32 %bit; selp.b32 %bit, 1, 0, %result;")
        value = "%bit"
    last = len(operands)
    lines += [f".reg .b64 %to; mad.wide.u32 %to, %i, {bits // 8}, %a{last};", f"st.global.b{bits} [%to], {value};"]
    threads = min(count, 256)
    blocks = -(-count // threads)
    guard = f"""
.reg .b32 %i; .reg .b32 %block; .reg .pred %outside;
mov.u32 %block, %ctaid.x; mad.lo.u32 %i, %block, {threads}, %t;
setp.ge.u32 %outside, %i, {count};
@%outside ret;
"""
    text = program(guard + "\n".join(lines), list(tensors))
    report = launch(text, tensors, threads=threads, grid=(blocks,), out=("d",), read_only=tuple(tensors)[:-1])
    assert not report.faults, "\n".join(map(str, report.faults))
    return report.tensors["d"]


def pairs(values: Array, count: int) -> list[Array]:
    """Every combination of `count` of these values, as columns."""
    return [np.ascontiguousarray(column.reshape(-1)) for column in np.meshgrid(*[values] * count, indexing="ij")]


def edges(kind: str, extra: int = 24, seed: int = 0) -> Array:
    """Relevant values of an integer kind: ends, powers, small numbers, and some at random."""
    bits = int(kind[1:])
    signed = kind[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    found = {0, 1, 2, 3, 5, 7, 31, high, high - 1, low, low + 1, high // 2, high // 3}
    if signed:
        found |= {-1, -2, -3, -7, -31}
    random = np.random.default_rng(seed)
    found |= {int(x) for x in random.integers(low, high, extra, dtype=np.int64 if signed else np.uint64)}
    return np.array(sorted(found), f"{'i' if signed else 'u'}{bits // 8}")


OUT = np.zeros(32, np.uint32)
IN = np.arange(32, dtype=np.uint32) + 1
AT = "mad.wide.u32 %d0, %t, 4, %a0; mad.wide.u32 %d1, %t, 4, %a1;"
TENSORS = {"source": IN, "out": OUT}


def kinds(report: Report) -> set[str]:
    """The kinds of the report's faults."""
    return {fault.kind for fault in report.faults}


def go(body: str, **more: object) -> Report:
    """A launch of one block with `source` (read-only) and `out`; after AT, thread t's elements are at %d0 and %d1."""
    options = {"out": ("out",), "read_only": ("source",)} | more
    tensors = options.pop("tensors", TENSORS)
    shared = int(options.get("shared", 0))  # pyright: ignore
    return launch(program(body, list(tensors), shared=shared), tensors, **options)  # pyright: ignore
