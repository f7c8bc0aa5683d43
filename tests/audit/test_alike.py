"""What both blocks of a pair compute alike, in random programs that an interpreter runs in both. Registers begin with equal
values: the emulator finds uses before a definition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.audit.alike import Alike
from tilec.audit.copies import Unclear
from tilec.audit.flow import Flow, Peer, Sum, registers

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


Trace = list[tuple[int, str | None, int]]
"""Executed instructions by index, with the register that each writes and its value."""


def traced(function: Any, special: dict[str, int], start: dict[str, int]) -> Trace:
    """A run of one thread, of at most `STEPS` instructions. A shared load reads the rank, to stand for what differs."""
    values, found, at = dict(start), list[tuple[int, str | None, int]](), 0

    def value(operand: Any) -> int:
        if hasattr(operand, "value"):
            return int(operand.value) & MASK
        return values.get(operand.name, special.get(operand.name, 0))

    for _ in range(STEPS):
        if at >= len(function.instructions):
            break
        one = function.instructions[at]
        if one.guard is not None and (values[one.guard.name] == 0) != one.guard_negated:
            at += 1
            continue
        if one.opcode in ("bra", "ret"):
            found.append((at, None, 0))
            at = function.labels[one.operands[0].name] if one.opcode == "bra" else len(function.instructions)
            continue
        target, *sources = one.operands
        if one.opcode == "ld":
            number = special["%cluster_ctarank"] if "shared" in one.modifiers else 7
        else:
            given_values = [value(source) for source in sources]
            match one.opcode:
                case "mov":
                    (number,) = given_values
                case "add":
                    number = sum(given_values)
                case "sub":
                    number = given_values[0] - given_values[1]
                case "and":
                    number = given_values[0] & given_values[1]
                case "or":
                    number = given_values[0] | given_values[1]
                case "xor":
                    number = given_values[0] ^ given_values[1]
                case "mul":
                    number = given_values[0] * given_values[1]
                case "mad":
                    number = given_values[0] * given_values[1] + given_values[2]
                case "shl":
                    number = given_values[0] << given_values[1] if given_values[1] < 32 else 0
                case "shr":
                    number = given_values[0] >> given_values[1]
                case "selp":
                    number = given_values[0] if given_values[2] else given_values[1]
                case _:
                    assert one.opcode == "setp"
                    number = int(given_values[0] == given_values[1])
        values[target.name] = number & MASK
        found.append((at, target.name, number & MASK))
        at += 1
    return found


names = st.integers(0, REGISTERS - 1).map(lambda number: f"%r{number}")
specials = st.sampled_from(["%cluster_ctarank", "%ctaid.x", "%tid.x", "%nctaid.x", "%ctaid.y"])
numbers = st.integers(0, 9).map(str)
operands = st.one_of(names, names, numbers)
guards = st.sampled_from(["", "", "", "@%p0 ", "@!%p0 ", "@%p1 "])


@st.composite
def lines(draw: st.DrawFn, branches: bool) -> list[str]:
    count = draw(st.integers(3, 14))
    kinds = [
        "mov",
        "add",
        "add",
        "sub",
        "and",
        "or",
        "xor",
        "mul.lo",
        "mad.lo",
        "shl",
        "shr",
        "special",
        "setp",
        "setp",
        "selp",
        "ld",
    ]
    found = [f"mov.b32 %r{number}, {number};" for number in range(draw(st.integers(3, REGISTERS)))]
    found += ["setp.eq.u32 %p0, %r0, 0;", "setp.eq.u32 %p1, %r1, 0;"]
    length = len(found) + count
    for _ in range(count):
        kind = draw(st.sampled_from([*kinds, *(["bra", "bra", "bra"] if branches else [])]))
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


def both(function: Any, pair: int, tid: int) -> tuple[Trace, Trace]:
    runs: list[Trace] = []
    for rank in (0, 1):
        special = {
            "%cluster_ctarank": rank, "%ctaid.x": 2 * pair + rank, "%tid.x": tid, "%nctaid.x": 8, "%ctaid.y": 3,
        }  # fmt: skip
        runs.append(traced(function, special, {f"%r{number}": number for number in range(REGISTERS)}))
    return runs[0], runs[1]


@given(lines(branches=True), st.integers(0, 3), st.integers(0, 2))
def test_what_is_alike_is_equal_in_both_runs(text: list[str], pair: int, tid: int) -> None:
    function = program(text)
    found = alike(function)
    seen: list[list[Any]] = []
    for run in both(function, pair, tid):
        common = [(at, name, value) for at, name, value in run if found.executed(at)]
        seen.append([(at, value if name and found.base((name, at)) else None) for at, name, value in common])
        for at, name, _ in run:
            assert name is None or found.executed(at) or not found.base((name, at))
    shorter = min(map(len, seen))
    assert seen[0][:shorter] == seen[1][:shorter]
    finished = all(len(run) < STEPS and run[-1][0] == len(function.instructions) - 1 for run in both(function, pair, tid))
    assert not finished or seen[0] == seen[1]


@given(lines(branches=False), st.integers(0, 3), st.integers(0, 2))
def test_numbers_of_a_rank_are_those_of_its_run(text: list[str], pair: int, tid: int) -> None:
    """What `flow` calls a number, or a register and a number, is that in the block of the rank."""
    function = program(text)
    for rank, run in enumerate(both(function, pair, tid)):
        flow = Flow(function, {"%cluster_ctarank": rank})
        written: dict[int, int] = {}
        for at, name, value in run:
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


def test_a_place_in_the_other_block_is_alike_if_its_address_is() -> None:
    found = alike(program([RANKED, "mov.u32 %r1, 1;"]))
    assert found.base(Peer(0, ("%r1", 1))) and found.base(Peer(0, None)) and not found.base(Peer(0, ("%r0", 0)))


def test_calls_and_tables_of_branches_are_not_followed() -> None:
    with pytest.raises(Unclear, match="where `brx` leads"):
        alike(program(["mov.u32 %r0, 0;", "T: .branchtargets L0, L1;", "brx.idx %r0, T;"]))
