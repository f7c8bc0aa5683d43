"""Proves that integer arithmetic that decides an address does not overflow its type, and that divisors are positive.

It checks everything that an index, a loop bound or a branch condition is computed from. The rest of the prover reasons about
unbounded integers, which this makes exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tilec.diagnostics.diagnostic import Fix
from tilec.ir.core import Block, Op, Value
from tilec.ir.facts.range_facts import Range
from tilec.ir.ops import Binary, For, Unary
from tilec.ir.types import DType
from tilec.passes.analysis.obligations import may_wrap
from tilec.passes.analysis.ranges import unwrapped
from tilec.passes.analysis.relevance import deciding_ops
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Axis, Instance, rebased, tile_position
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import Complaint, Findings, loop_labels
from tilec.passes.prover.runs import operand_in, result_in
from tilec.passes.prover.terms import Formula, Poly

_SPELLINGS = {"add": "+", "sub": "-", "mul": "*", "shl": "<<", "neg": "-", "abs": "abs", "floordiv": "//", "mod": "%"}


def prove_arithmetic(findings: Findings, sites: list[AccessSite]) -> None:
    """One obligation per operation that may overflow its type, one per divisor and loop step, one per clipped box."""
    prove_operations(findings, findings.index.deciding)
    for site in sites:
        if site.clipped and not site.unsafe and not site.op.indexed:
            findings.begin(f"the range of the end of {site.subject}", site.location)
            _box_fits(findings, site)


def prove_operations(findings: Findings, ops: Iterable[Op]) -> None:
    """The obligations of the given operations."""
    for op in ops:
        findings.begin(f"the range of `{op.kind if isinstance(op, Binary | Unary) else op.opcode}`", op.loc)
        if isinstance(op, For):
            _positive(findings, op, op.step, "step")
            _counter_fits(findings, op)
        elif isinstance(op, Binary) and op.kind in ("floordiv", "mod") and op.result.tile.dtype.is_integer:
            _positive(findings, op, op.operands[1], "divisor")
        elif may_wrap(op):
            _fits(findings, op)


def located(findings: Findings, op: Op, polys: list[Poly], also: Iterable[Formula] = ()) -> Instance:
    """An instance of an operation that does not access memory; `also` is assumed of it."""
    index = findings.index
    frames = index.structure.frames[op]
    loops = [frame.op for frame in frames if isinstance(frame.op, For)]
    axes = tuple(Axis(poly, 1, terms.ONE) for poly in polys)
    also = list(also)
    about = [*also, *(Formula("eq", poly) for poly in polys)]
    blocks = tuple(index.block(axis) for axis in range(len(index.grid)))
    named = tuple((loop, index.variable(loop), index.iteration(loop)) for loop in loops)
    instance = Instance(axes, tuple(index.runs(frames)), (*index.given(op, about), *also), blocks, {}, named, ())
    return rebased(index, op, instance)[0]


def _fits(findings: Findings, op: Op) -> None:
    dtype = op.result.tile.dtype
    if op in findings.index.prefix_sums.additions and _in_range(unwrapped(op, findings.index.ranges), dtype):
        findings.discharged("wrap", "`+`", op, Discharge("interval"))
        return  # its operands as terms are many nested choices
    positions = tuple(tile_position(findings.index, op, k, e) for k, e in enumerate(op.result.tile.shape))
    operands = [findings.index.element(v, positions) for v in op.operands]
    kind = op.kind if isinstance(op, Binary | Unary) else "cast"
    result = findings.index.unbounded(op, operands) if isinstance(op, Binary | Unary) else operands[0]
    if result is None and kind == "shl":
        _shift_fits(findings, op, *operands)
        return
    if result is None:
        result = findings.index.element(op.result, positions)
    _within(findings, op, located(findings, op, [result]), dtype, kind, unwrapped(op, findings.index.ranges))


def _shift_fits(findings: Findings, op: Op, left: Poly, amount: Poly) -> None:
    """The obligation of a left shift that is not translated: no amount within the width takes its operand out of the dtype. By
    the width or more it is 0."""
    ranges, dtype = findings.index.ranges, op.result.tile.dtype
    if _in_range(unwrapped(op, ranges), dtype):
        findings.discharged("wrap", "`<<`", op, Discharge("interval"))
        return
    low, high = dtype.integer_range()
    known = ranges[op.operands[0]]
    unsafe = [k for k in range(dtype.bits) if not _in_range(Range(known.low << k, known.high << k), dtype)]
    if known.constant is not None:
        leaves = terms.conjunction([terms.lt(amount, dtype.bits), terms.ge(amount, unsafe[0])])
    else:
        outside = {k: (terms.lt(left * (1 << k), low), terms.lt(terms.const(high), left * (1 << k))) for k in unsafe}
        leaves = terms.disjunction(
            terms.conjunction([terms.eq(amount, k), terms.disjunction(ends)]) for k, ends in outside.items()
        )
    instance = located(findings, op, [amount])
    complain = partial(_wraps, findings, op, instance, dtype, "shl")
    found = findings.prove([*instance.holds, leaves], complain, run=result_in(op, low, high))
    if found is not None:
        findings.discharged("wrap", "`<<`", op, found)


def _in_range(known: Range | None, dtype: DType) -> bool:
    low, high = dtype.integer_range()
    return known is not None and low <= known.low and known.high <= high


def _within(findings: Findings, op: Op, instance: Instance, dtype: DType, kind: str, known: Range | None) -> None:
    """`known` is the range of the result from range analysis."""
    low, high = dtype.integer_range()
    (axis,) = instance.axes
    violations = (terms.lt(axis.start, low), terms.lt(terms.const(high), axis.start))
    if all(violation == terms.FALSE for violation in violations):
        rung = "static" if axis.start.constant is not None else "interval"
        findings.discharged("wrap", f"`{_SPELLINGS.get(kind, kind)}`", op, Discharge(rung))
        return
    discharges: list[Discharge] = []
    ends = (None, None) if known is None else (terms.lt(terms.const(known.low), low), terms.lt(terms.const(high), known.high))
    limits = ((low, None), (None, high))
    for violation, coarse, limit in zip(violations, ends, limits, strict=True):
        complain = partial(_wraps, findings, op, instance, dtype, kind)
        found = findings.prove([*instance.holds, violation], complain, coarse, result_in(op, *limit))
        if found is None:
            return
        discharges.append(found)
    findings.discharged("wrap", f"`{_SPELLINGS.get(kind, kind)}`", op, strongest(discharges))


def _wraps(findings: Findings, op: Op, instance: Instance, dtype: DType, kind: str) -> Complaint:
    low, high = dtype.integer_range()
    subject = f"conversion to {dtype}" if kind == "cast" else f"`{_SPELLINGS[kind]}`" if kind in _SPELLINGS else kind
    return Complaint(
        "E0304",
        f"{subject} may leave the range of {dtype}",
        op.loc,
        f"{dtype} holds {low} to {high}",
        loop_labels(findings.index, op),
        _hint(findings, op),
        (instance,),
    )


def _hint(findings: Findings, op: Op) -> str:
    """A loop-carried value may grow without bound, and no precondition limits it: the hint is to clamp it where it is
    computed."""
    loops = findings.index.structure.loops
    if op not in deciding_ops(findings.index.function):
        return "state the range of its inputs with `values(...)`"
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, Block) and owner in loops and value is not owner.arguments[0]:
            name = value.name if value.name.isidentifier() else "c"
            clamped, bound = f"`{name} = minimum({name} + 1, N)`", f"`invariant({name} <= N)`"
            return f"clamp what the loop carries, such as {clamped}, or state at the start of its body what bounds it: {bound}"
    return "widen an operand with `.astype(i64)`, or bound the sizes with `requires(...)`"


def _box_fits(findings: Findings, site: AccessSite) -> None:
    """A clipped box may begin outside the tensor, but the index of its last element must fit its type."""
    met: list[Discharge] = []
    for offset, axis in zip(site.op.indices, site.instance.axes, strict=True):
        _, high = offset.tile.dtype.integer_range()
        # The offset itself fits: the operation that computes it has that obligation.
        violation = [terms.ge(terms.const(high), axis.start), terms.lt(terms.const(high), axis.start + (axis.extent - 1))]
        found = findings.prove(
            [*site.instance.holds, *violation],
            lambda t=offset.tile.dtype: _wraps(findings, site.op, site.instance, t, f"the end of {site.subject}"),
            terms.lt(terms.const(high), findings.index.ranges[offset].high + axis.extent - 1),
            operand_in(site.op, site.op.operands.index(offset), None, high - axis.extent + 1),
        )
        if found is None:
            return
        met.append(found)
    findings.discharged("wrap", f"end of {site.subject}", site.op, strongest(met))


def _counter_fits(findings: Findings, op: For) -> None:
    """The loop variable after the last iteration fits i32: otherwise the loop could not end."""
    index = findings.index
    instance = located(findings, op.regions[0].ops[-1], [index.variable(op) + index.scalar(op.step)])
    low, high = op.upper.tile.dtype.integer_range()
    violation = terms.lt(terms.const(high), instance.axes[0].start)
    if violation == terms.FALSE:
        findings.discharged("wrap", "loop variable", op, Discharge("interval"))
        return

    def complain() -> Complaint:
        return Complaint(
            "E0304",
            "loop variable may leave the range of i32 after the last iteration",
            op.loc,
            f"i32 holds {low} to {high}",
            loop_labels(index, op),
            "bound the step with `requires(...)`, or fix the grid to the blocks the device holds",
            (instance,),
        )

    found = findings.prove([*instance.holds, violation], complain)
    if found is not None:
        findings.discharged("wrap", "loop variable", op, found)


def _positive(findings: Findings, op: Op, value: Value, role: str) -> None:
    index = findings.index
    positions = tuple(tile_position(index, op, k, e) for k, e in enumerate(value.tile.shape))
    instance = located(findings, op, [index.element(value, positions)])
    divisor = instance.axes[0].start
    violation = terms.lt(divisor, 1)
    if violation == terms.FALSE:
        findings.discharged("divisor", _role(op, role), op, Discharge("static" if divisor.constant is not None else "interval"))
        return

    def complain() -> Complaint:
        hint = f"state that it is positive with `requires(...)`, or use `max(1, ...)` for the {role}"
        return Complaint(
            "E0305",
            f"{role} may be zero or negative",
            op.loc,
            "must be positive",
            loop_labels(index, op),
            hint,
            (instance,),
            fixes=_stated_positive(op, divisor),
        )

    found = findings.prove([*instance.holds, violation], complain, run=operand_in(op, op.operands.index(value), 1, None))
    if found is not None:
        findings.discharged("divisor", _role(op, role), op, found)


def _stated_positive(op: Op, divisor: terms.Poly) -> tuple[Fix, ...]:
    """A fix that states the divisor is positive, if it is one dim or scalar."""
    named = [atom for atom in terms.closure([terms.ge(divisor)]) if atom.kind is terms.Kind.SYMBOL]
    if op.loc is None or len(named) != 1 or terms.of(named[0]) != divisor:
        return ()
    text = f"requires({named[0].name} > 0)"
    return (Fix(f"state `{text}`", "statement", text, op.loc, certain=True),)


def _role(op: Op, role: str) -> str:
    return f"{role} of `{_SPELLINGS[op.kind]}`" if isinstance(op, Binary) else f"{role} of `range`"
