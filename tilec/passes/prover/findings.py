"""Results of proving a kernel: discharged obligations, and diagnostics for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tilec.artifact.records import Obligation
from tilec.diagnostics.diagnostic import Counterexample, Diagnostic, Fix, Label, Span
from tilec.ir.core import Op
from tilec.ir.facts.range_facts import Range
from tilec.ir.ops import For
from tilec.ir.ops.loop_claims import PASS
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Axis, Instance
from tilec.passes.prover.counterexample import counterexample
from tilec.passes.prover.discharge import Discharge, Refusal, strongest
from tilec.passes.prover.equal_unknowns import with_equal_unknowns
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.interval_runs import IntervalRun
from tilec.passes.prover.ladder import Ladder
from tilec.passes.prover.replay import replays
from tilec.passes.prover.runs import rung_of
from tilec.passes.prover.terms import Poly


@dataclass(frozen=True, slots=True)
class Complaint:
    """How to report an obligation that is not discharged: what, where, why, and how to fix it."""

    code: str
    message: str
    span: Span | None
    label: str = ""
    because: tuple[Label, ...] = ()
    hint: str = ""
    instances: tuple[Instance, ...] = ()
    tensor: str = ""
    element: tuple[Poly, ...] = ()
    note: str = ""
    fixes: tuple[Fix, ...] = ()
    tile: Axis | None = None
    """The axis whose bounds are violated, if a fix is to clip it."""


@dataclass(frozen=True, slots=True)
class At:
    """An operand of an operation, and the violation by a value in a range, in terms of launch values."""

    op: Op
    number: int
    violation: Callable[[Range], terms.Formula]


class NotProven(Exception):
    """An obligation is not discharged, and nobody asks why."""


@dataclass(slots=True)
class Findings:
    """Obligations and diagnostics of one kernel. With `only_proofs`, the first obligation that is not discharged raises
    NotProven: diagnostics take longer than proofs."""

    index: IndexTerms
    ladder: Ladder
    obligations: list[Obligation] = field(default_factory=list[Obligation])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    by_op: dict[Op, list[Obligation]] = field(default_factory=dict[Op, "list[Obligation]"])
    only_proofs: bool = False

    def discharged(self, property: str, subject: str, op: Op | None, how: Discharge, span: Span | None = None) -> None:
        """Record a discharged obligation."""
        location = (op.loc if op is not None else None) or span
        obligation = Obligation(property, subject, str(location or ""), how.rung, how.facts, how.sets)
        self.obligations.append(obligation)
        if op is not None:
            self.by_op.setdefault(op, []).append(obligation)

    def begin(self, what: str, span: Span | None) -> None:
        """Name the next obligation: work is charged to it, and the progress note shows it if the process is killed."""
        self.ladder.solver.work.begin(what, span)

    def prove(
        self,
        violation: Iterable[terms.Formula],
        complain: Callable[[], Complaint],
        coarse: terms.Formula | None = None,
        run: Callable[[IntervalRun], bool] | None = None,
        at: At | None = None,
    ) -> Discharge | None:
        """Discharge a violation, or add the diagnostic that `complain` describes. `coarse` is a weaker formula, implied by the
        violation, for cases that products and nested choices make too hard but ranges alone decide. What it decides at once is
        not asked of isl. `run`: whether a run over intervals shows that there is no violation; `at`: what must be proven
        of launch values so that its range of an operand shows it."""
        if coarse == terms.FALSE:
            return Discharge("interval")
        result = self.ladder.discharge(violation)
        if isinstance(result, Discharge):
            return result
        if coarse is not None and coarse != terms.TRUE:
            weaker = self.ladder.discharge([coarse])
            if isinstance(weaker, Discharge):
                return weaker
        texts = self.ladder.runs.shows(run) if run is not None else None
        if texts is not None:
            return Discharge(rung_of(texts), texts)
        ranged = self._by_range(at) if at is not None else None
        if ranged is not None:
            return ranged
        self.refuse(result, complain())
        return None

    def _by_range(self, at: At) -> Discharge | None:
        known = self.ladder.runs.operand(at.op, at.number)
        if known is None:
            return None
        range_, texts = known
        proof = self.ladder.discharge([at.violation(range_)])
        return strongest((Discharge(rung_of(texts), texts), proof)) if isinstance(proof, Discharge) else None

    def refuse(self, refusal: Refusal, complaint: Complaint) -> None:
        """Add a diagnostic with a counterexample, if one is found that replay does not contradict; otherwise one that says the
        obligation could not be decided."""
        shown = [poly for i in complaint.instances for poly in (*i.blocks, *(axis.start for axis in i.axes))]
        shown += [variable for i in complaint.instances for _, variable, _ in i.loops]
        self._end_if_only_proofs()
        index, instances = self.index, complaint.instances
        witness = self.ladder.witness(
            refusal, shown, lambda one: with_equal_unknowns(index, one, instances, replays(index, one, instances))
        )
        found, note = witness if witness is not None else (None, "")
        if complaint.tile is not None and (found is None or not _straddles_edge(complaint.tile, found)):
            uncertain_fixes = tuple(replace(fix, certain=fix.certain and fix.change != "argument") for fix in complaint.fixes)
            complaint = replace(complaint, fixes=uncertain_fixes)
        complaint = replace(complaint, note=", ".join(part for part in (complaint.note, note) if part))
        self.report(complaint, self._example(complaint, found) if found is not None else None)

    def report(self, complaint: Complaint, example: Counterexample | None) -> None:
        """Add a diagnostic; without a counterexample it is E0306, "could not decide"."""
        self._end_if_only_proofs()
        code, message = complaint.code, complaint.message
        notes: tuple[str, ...] = ()
        if example is None:
            code = "E0306"
            message = f"could not decide whether {_as_clause(message)}"
            notes = ("found neither a launch that violates it nor a proof",)
        span = complaint.span or self.index.function.loc
        primary = Label(span, complaint.label) if span is not None else None
        diagnostic = Diagnostic(code, message, primary, complaint.because, notes, example, complaint.hint, complaint.fixes)
        if not any(_same_location(diagnostic, other) for other in self.diagnostics):
            self.diagnostics.append(diagnostic)

    def _end_if_only_proofs(self) -> None:
        if self.only_proofs:
            raise NotProven

    def _example(self, complaint: Complaint, found: Assignment) -> Counterexample:
        value = evaluator(found)
        element = tuple(terms.evaluate(p, value) for p in complaint.element)
        return counterexample(self.index, found, complaint.instances, complaint.tensor, element, complaint.note)


def _straddles_edge(axis: Axis, found: Assignment) -> bool:
    """Whether a tile has elements on both sides of an edge, such as the last tile of an extent that is not a multiple of the
    tile."""
    value = evaluator(found)
    start, dim = terms.evaluate(axis.start, value), terms.evaluate(axis.dim, value)
    return start < dim and start + axis.extent > 0 and dim % axis.extent != 0


def _as_clause(message: str) -> str:
    return message.replace(" may ", " could ")


def _same_location(left: Diagnostic, right: Diagnostic) -> bool:
    same_span = (left.primary and left.primary.span) == (right.primary and right.primary.span)
    return left.code == right.code and same_span and left.message == right.message


def loop_labels(index: IndexTerms, op: Op) -> tuple[Label, ...]:
    """A label with the range of the variable of each loop around an operation."""
    labels: list[Label] = []
    for frame in index.structure.frames[op]:
        if isinstance(frame.op, For) and frame.op.loc is not None and frame.op.variable != PASS:
            variable = index.ranges[frame.op.regions[0].arguments[0]]
            text = f"{variable.low} <= `{frame.op.variable or 'i'}` < {variable.high + 1}"
            labels.append(Label(frame.op.loc, text))
    return tuple(labels)
