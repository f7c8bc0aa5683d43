"""What both blocks of a pair compute alike, in random programs that an interpreter runs in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.audit.alike import Alike
from tilec.audit.copies import Unclear
from tilec.audit.flow import Flow, Peer, Product, Sum, registers

emulator: Any = pytest.importorskip("tilec.emulator")
REGISTERS = 5
STEPS = 60
MASK = 2**32 - 1


def program(lines: list[str]) -> Any:
    body = "\n".join(f"L{number}:\n\t{line}" for number, line in enumerate(lines))
    declared = f".reg .b32 %r<{REGISTERS}>;\n.reg .pred %p<2>;"
    head = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u32 n)\n"
    return emulator.parse(f"{head}{{\n{declared}\n{body}\n\tret;\n}}\n").functions["k"]


def alike(function: Any, rank: int = 0) -> Alike:
    return Alike(Flow(function, {"%cluster_ctarank": rank}), function)


class Step(NamedTuple):
    """An executed instruction by index, the register that it writes with its value, and the registers before."""

    at: int
    name: str | None
    value: int
    before: dict[str, int]


class Undefined(Exception):
    """A register is read before its definition."""


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__, "sub": int.__sub__, "and": int.__and__, "or": int.__or__, "xor": int.__xor__, "mul": int.__mul__,
    "shl": int.__lshift__, "shr": int.__rshift__, "setp": int.__eq__,
}  # fmt: skip


def traced(function: Any, special: dict[str, int]) -> tuple[list[Step], bool]:
    """A run of one thread, of at most `STEPS` instructions, up to a use before the definition; and whether it ended. A shared
    load reads the rank, to stand for what differs."""
    values: dict[str, int] = {}
    found: list[Step] = []
    at = 0

    def value(operand: Any) -> int:
        if hasattr(operand, "value"):
            return int(operand.value) & MASK
        if operand.name not in values and operand.name not in special:
            raise Undefined
        return values[operand.name] if operand.name in values else special[operand.name]

    try:
        while at < len(function.instructions):
            one = function.instructions[at]
            if len(found) == STEPS:
                return found, False
            if one.guard is not None and (value(one.guard) == 0) != one.guard_negated:
                at += 1
            elif one.opcode in ("bra", "ret"):
                found.append(Step(at, None, 0, dict(values)))
                at = function.labels[one.operands[0].name] if one.opcode == "bra" else len(function.instructions)
            else:
                number = result(one, value, special) & MASK
                found.append(Step(at, one.operands[0].name, number, dict(values)))
                values[one.operands[0].name] = number
                at += 1
    except Undefined:
        return found, False
    return found, True


def result(one: Any, value: Callable[[Any], int], special: dict[str, int]) -> int:
    if one.opcode == "ld":
        return special["%cluster_ctarank"] if "shared" in one.modifiers else 7
    sources = [value(source) for source in one.operands[1:]]
    match one.opcode:
        case "mov":
            return sources[0]
        case "mad":
            return sources[0] * sources[1] + sources[2]
        case "selp":
            return sources[0] if sources[2] else sources[1]
        case _:
            return int(BINARY[one.opcode](*sources))


names = st.integers(0, REGISTERS - 1).map(lambda number: f"%r{number}")
specials = st.sampled_from(["%cluster_ctarank", "%ctaid.x", "%tid.x", "%nctaid.x", "%ctaid.y"])
numbers = st.integers(0, 9).map(str)
operands = st.one_of(names, names, numbers)
guards = st.sampled_from(["", "", "", "@%p0 ", "@!%p0 ", "@%p1 "])


@st.composite
def lines(draw: st.DrawFn, branches: bool) -> list[str]:
    count = draw(st.integers(4, 10))
    kinds = ["mov", "add", "add", "sub", "and", "or", "xor", "mul.lo", "mad.lo", "shl", "shr", "special", "setp", "selp", "ld"]
    found = [f"mov.u32 %r{number}, {draw(st.one_of(specials, numbers))};" for number in range(REGISTERS - 1)]
    found += ["setp.eq.u32 %p0, %r0, 0;", "setp.eq.u32 %p1, %r1, 1;"]
    length = len(found) + count
    for _ in range(count):
        kind = draw(st.sampled_from([*kinds, *(["bra"] * 8 if branches else [])]))
        guard, target = draw(guards), draw(names)
        left, right = draw(operands), draw(operands)
        match kind:
            case "bra":
                line = f"bra L{draw(st.integers(0, length - 1))};"
            case "special":
                line = f"mov.u32 {target}, {draw(specials)};"
            case "mov":
                line = f"mov.u32 {target}, {left};"
            case "setp":
                line = f"setp.eq.u32 %p{draw(st.integers(0, 1))}, {left}, {right};"
            case "selp":
                line = f"selp.b32 {target}, {left}, {right}, %p{draw(st.integers(0, 1))};"
            case "ld":
                line = draw(st.sampled_from([f"ld.shared.u32 {target}, [0];", f"ld.param.u32 {target}, [n];"]))
            case "mad.lo":
                line = f"mad.lo.u32 {target}, {left}, {right}, {draw(operands)};"
            case "and" | "or" | "xor":
                line = f"{kind}.b32 {target}, {left}, {right};"
            case "shl" | "shr":
                line = f"{kind}.{'b' if kind == 'shl' else 'u'}32 {target}, {left}, {draw(st.integers(0, 3))};"
            case _:
                line = f"{kind}.u32 {target}, {left}, {right};"
        found.append(guard + line)
    return found


def both(function: Any, pair: int, tid: int) -> list[tuple[list[Step], bool]]:
    return [
        traced(function, {
            "%cluster_ctarank": rank, "%ctaid.x": 2 * pair + rank, "%tid.x": tid, "%nctaid.x": 8, "%ctaid.y": 3,
        })
        for rank in (0, 1)
    ]  # fmt: skip


@given(lines(branches=True), st.integers(0, 3), st.integers(0, 2))
def test_what_is_alike_is_equal_in_both_runs(text: list[str], pair: int, tid: int) -> None:
    function = program(text)
    found = alike(function)
    runs = both(function, pair, tid)
    seen: list[list[Any]] = []
    for run, _ in runs:
        common = [step for step in run if found.executed(step.at)]
        seen.append([(at, value if name and found.base((name, at)) else None) for at, name, value, _ in common])
        for at, name, *_ in run:
            assert name is None or found.executed(at) or not found.base((name, at))
    shorter = min(map(len, seen))
    assert seen[0][:shorter] == seen[1][:shorter]
    assert not all(ended for _, ended in runs) or seen[0] == seen[1]


@given(lines(branches=True), st.integers(0, 3), st.integers(0, 2))
def test_values_at_one_base_differ_by_their_constants(text: list[str], pair: int, tid: int) -> None:
    """Whatever both blocks read, by the flows of both ranks."""
    function = program(text)
    found = alike(function)
    flows = [Flow(function, {"%cluster_ctarank": rank}, found.apart) for rank in (0, 1)]
    runs = ([step for step in run if found.executed(step.at)] for run, _ in both(function, pair, tid))
    for first, second in zip(*runs, strict=False):
        for operand in function.instructions[first.at].operands[1:]:
            name = getattr(operand, "name", "")
            if name in first.before and name.startswith("%r"):
                here, there = (flow.symbolic(operand, first.at) for flow in flows)
                if isinstance(here, Sum) and isinstance(there, Sum) and here.base == there.base and found.base(here.base):
                    difference = second.before[name] - first.before[name]
                    assert difference & MASK == there.constant - here.constant & MASK


@given(lines(branches=False), st.integers(0, 3), st.integers(0, 2))
def test_numbers_of_a_rank_are_those_of_its_run(text: list[str], pair: int, tid: int) -> None:
    """What `flow` calls a number, or a register and a number, is that in the block of the rank."""
    function = program(text)
    for rank, (run, _) in enumerate(both(function, pair, tid)):
        flow = Flow(function, {"%cluster_ctarank": rank})
        written: dict[int, int] = {}
        for at, name, value, _ in run:
            written[at] = value
            if name is None or not name.startswith("%r"):
                continue
            symbolic = flow.symbolic(function.instructions[at].operands[0], at + 1)
            if not isinstance(symbolic, Sum):
                continue
            if symbolic.base is None:
                assert value == symbolic.constant & MASK
            elif isinstance(symbolic.base, tuple) and symbolic.base[1] in written:
                assert value == written[symbolic.base[1]] + symbolic.constant & MASK


RANKED = "mov.u32 %r0, %cluster_ctarank;"


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ([RANKED, "add.u32 %r1, %r0, 1;"], {"%r0", "%r1"}),
        (["mov.u32 %r0, %ctaid.x;", "shr.u32 %r1, %r0, 1;", "shr.u32 %r2, %r0, 0;"], {"%r0", "%r2"}),
        (["mov.u32 %r0, %ctaid.x;", "add.u32 %r0, %r0, 1;", "shr.u32 %r1, %r0, 1;"], {"%r0", "%r1"}),
        (["mov.u32 %r0, %clock;", "mov.u32 %r1, %tid.x;"], {"%r0"}),
        (["ld.shared.u32 %r0, [0];", "ld.param.u32 %r1, [n];"], {"%r0"}),
        (["elect.sync %r0|%p0, 1;", "@%p0 mov.u32 %r1, 1;"], set[str]()),
        ([RANKED, "elect.sync %r1|%p0, %r0;", "@%p0 mov.u32 %r2, 1;"], {"%r0", "%r1", "%r2"}),
        ([RANKED, "setp.eq.u32 %p0, %r0, 0;", "@%p0 bra L4;", "mov.u32 %r1, 1;", "mov.u32 %r2, 1;"], {"%r0", "%r1"}),
        ([RANKED, "setp.eq.u32 %p0, %r0, 0;", "@%p0 bra L0;", "mov.u32 %r1, 1;"], {"%r0"}),
        ([RANKED, "mov.u32 %r1, 1;", "setp.eq.u32 %p0, %r0, 0;", "@%p0 bra L1;", "mov.u32 %r2, 1;"], {"%r0", "%r1"}),
        ([RANKED, "setp.eq.u32 %p0, %r0, 0;", "@%p0 ret;", "mov.u32 %r1, 1;"], {"%r0", "%r1"}),
    ],
    ids=range(11),
)
def test_registers_that_depend_on_the_rank(text: list[str], other: set[str]) -> None:
    function = program(text)
    defined = {register.name for one in function.instructions for register in registers(one.operands[:1])}
    found = alike(function)
    assert {name for name in defined if name.startswith("%r") and not found.base((name, 0))} == other


def test_a_definition_in_one_block_alone_is_not_followed() -> None:
    """In the second iteration the block of rank 1 still has the product of the first."""
    function = program([
        RANKED, "mov.u32 %r1, 0;",
        "setp.eq.u32 %p0, %r0, %r1;", "@%p0 bra L5;", "mad.lo.u32 %r2, %r1, 3, 4;",
        "mov.u32 %r3, %r2;", "add.u32 %r1, %r1, 1;", "setp.eq.u32 %p1, %r1, 2;", "@!%p1 bra L2;",
    ])  # fmt: skip
    found = alike(function)
    plain, careful = Flow(function), Flow(function, {}, found.apart)
    copied = function.instructions[5]
    for flow in (plain, careful):
        kept = flow.symbolic(copied.operands[1], 5)
        assert isinstance(kept, Sum) and not found.base(kept.base)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["mul.lo.u32 %r1, %r0, 8;", "or.b32 %r2, %r1, 3;"], Sum(("%r1", 0), 3)),
        (["mul.hi.u32 %r1, %r0, 8;", "or.b32 %r2, %r1, 3;"], Sum(("%r2", 1), 0)),
        (["shl.b32 %r1, %r0, 3;", "or.b32 %r2, 3, %r1;"], Sum(("%r1", 0), 3)),
        (["mov.u32 %r1, 5;", "shl.b32 %r2, %r1, 30;"], Sum(("%r2", 1), 0)),
        (["mov.u32 %r1, 5;", "mul.hi.u32 %r2, %r1, 7;"], Sum(("%r2", 1), 0)),
        (["mov.u32 %r1, 5;", "mad.lo.u32 %r2, %r1, 7, %r0;"], Sum(("%r0", -1), 35)),
        (["mov.u32 %r1, 5;", "mad.lo.u32 %r2, %r0, %r0, %r1;"], Sum(Product(1), 5)),
        (["mov.u32 %r1, 5;", "mad.hi.u32 %r2, %r1, 7, 1;"], Sum(("%r2", 1), 0)),
    ],
)
def test_sums_and_numbers(text: list[str], expected: Sum) -> None:
    function = program(text)
    flow = Flow(function)
    assert flow.symbolic(function.instructions[1].operands[0], 2) == expected


def test_the_only_definition_of_a_register_is_not_its_value_before_it() -> None:
    """In every iteration but the first, the sum is that of the iteration before."""
    function = program([
        "mov.u32 %r0, 0;", "add.u32 %r1, %r0, 8;", "setp.eq.u32 %p0, %r0, 0;", "@%p0 bra L5;", "mov.u32 %r4, %r2;",
        "add.u32 %r2, %r1, 8;", "mov.u32 %r3, %r2;", "add.u32 %r0, %r0, 1;", "setp.lt.u32 %p1, %r0, 2;", "@%p1 bra L1;",
    ])  # fmt: skip
    flow = Flow(function)
    assert flow.symbolic(function.instructions[4].operands[1], 4) == Sum(("%r2", -2), 0)
    assert flow.symbolic(function.instructions[6].operands[1], 6) == Sum(("%r0", -2), 16)


@pytest.mark.parametrize(
    ("begins", "waits", "inside", "after"),
    [
        ("", "", (-2, 0), (-2, 0)),
        ("", "setp.eq.u32 %p1, %r3, 0;", (-2, 0), (-2, 0)),
        ("", "add.u32 %r0, %r0, 1;", (-3, 0), (-3, 1)),
        ("", "@%p1 add.u32 %r0, %r0, 1;", (-3, 0), (3, 0)),
        ("@%p1 bra L3;", "", (-2, 0), (-6, 0)),
        ("@%p1 bra L2;", "@%p1 bra L1;", (-4, 0), (-4, 0)),
    ],
)
def test_a_block_that_repeats_itself_keeps_what_it_does_not_define(
    begins: str, waits: str, inside: tuple[int, int], after: tuple[int, int]
) -> None:
    """A register has the value of the loop's first block in the block that repeats itself and in the one after it; unless the
    former defines it, if only for its next run, or the latter is entered from elsewhere too."""
    function = program([
        "mov.u32 %r0, 0;", f"add.u32 %r1, %r0, 8; {begins}", f"mov.u32 %r4, %r0; {waits} @%p0 bra L2;", "mov.u32 %r2, %r0;",
        "add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 2; @%p1 bra L1;",
    ])  # fmt: skip
    reads = {int(one.operands[0].name.removeprefix("%r")): at for at, one in enumerate(function.instructions[:-4])
             if one.opcode == "mov"}  # fmt: skip
    for register, (base, constant) in ((4, inside), (2, after)):
        at = reads[register]
        assert Flow(function).symbolic(function.instructions[at].operands[1], at) == Sum(("%r0", base), constant)


@pytest.mark.parametrize(
    "lines",
    [
        ["{ .reg .b64 q; mov.b64 q, 5; mov.b64 {%r1, %r2}, q; }"],
        ["mov.u32 %r1, 5;", "add.ftz.f32 %r2, %r1, %r1;"],
        ["mov.u32 %r1, 5;", "add.u16x2 %r2, %r1, 3;"],
        ["mov.u32 %r1, 5;", "add.sat.s32 %r2, %r1, 3;"],
        ["setp.eq.u32 %p0, %r0, 0;", "@%p1 setp.ne.u32 %p0, %r0, 0;", "selp.b32 %r2, 1, 2, %p0;"],
    ],
)
def test_instructions_of_other_kinds_are_not_followed(lines: list[str]) -> None:
    function = program(lines)
    last = len(function.instructions) - 2
    found = Flow(function).symbolic(function.registers[2], last + 1)
    assert found == Sum(("%r2", last), 0)


def test_the_low_bits_of_a_shift_are_those_of_its_own_amount() -> None:
    function = program(["mov.u32 %r3, 0; shl.b32 %r1, %r0, %r3; mov.u32 %r3, 8; or.b32 %r2, %r1, 3;"])
    assert Flow(function).symbolic(function.registers[2], 4) == Sum(("%r2", 3), 0)


def test_a_name_that_an_inner_scope_declares_again_is_another_register() -> None:
    function = program(["{ .reg .b32 %r0; mov.u32 %r1, %r0; }", "mov.u32 %r2, %r0;"])
    inner, outer = (Flow(function).symbolic(one.operands[1], at) for at, one in enumerate(function.instructions[:2]))
    assert isinstance(inner, Sum) and isinstance(outer, Sum)
    assert str(inner.base).split("'")[1] != str(outer.base).split("'")[1]


def test_a_float_is_no_number() -> None:
    function = program(["mov.b32 %r1, 0f3F800000;", "mov.b32 %r2, %r1;"])
    found = Flow(function).symbolic(function.instructions[1].operands[1], 1)
    assert isinstance(found, Sum) and found.base is not None


def test_an_address_in_the_other_block_is_alike_if_its_offset_is() -> None:
    found = alike(program([RANKED, "mov.u32 %r1, 1;"]))
    assert found.base(Peer(0, ("%r1", 1))) and found.base(Peer(0, None)) and not found.base(Peer(0, ("%r0", 0)))


def test_calls_and_tables_of_branches_are_not_followed() -> None:
    with pytest.raises(Unclear, match="where `brx` leads"):
        alike(program(["mov.u32 %r0, 0;", "T: .branchtargets L0, L1;", "brx.idx %r0, T;"]))
