"""Which steps are run against a mistake, in what order: the file's own tests first, then the layer's, then everything wide.

A step is a list of pytest targets that run in one process, or the ratchet, which is a command. Steps of the file and of its
layer run every case, campaigns included. The wide steps are the same for all files, cheap ones first, and run the cases of the
default run: what a survivor survives is the tests that run before each commit, and all cases of its own layer.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

Step = tuple[str, ...]
RATCHET: Step = ("tilec ratchet",)
"""Proofs and resources of the shipped kernels against `tests/golden`: no test, but the gate's own command."""
PROVER: tuple[Step, ...] = (
    ("tests/passes/test_precision.py", "tests/passes/test_prove.py", "tests/passes/test_ranges.py",
     "tests/passes/test_integer_sets.py", "tests/passes/test_contract.py", "tests/passes/test_case_split.py",
     "tests/passes/test_declared_ranges.py", "tests/passes/test_connectives.py", "tests/passes/test_unsafe_facts.py",
     "tests/passes/test_true_counterexamples.py"),
    ("tests/ui/test_ui.py", "tests/soundness/test_enumeration.py"),
    ("tests/soundness/test_random_kernels.py",),
)  # fmt: skip
SCHEDULING: tuple[Step, ...] = (
    ("tests/passes/test_schedule_choices.py", "tests/passes/test_staging.py", "tests/passes/test_propagation.py",
     "tests/passes/test_reshape_layouts.py", "tests/passes/test_dependency_wait.py", "tests/passes/test_canonicalize.py",
     "tests/passes/test_in_range.py", "tests/passes/test_ring_check.py", "tests/passes/test_notes.py",
     "tests/passes/test_schedule_mutants.py"),
    ("tests/lowering/test_mma.py", "tests/lowering/test_rules.py", "tests/lowering/test_barrier_kernels.py",
     "tests/lowering/test_register_operands.py", "tests/passes/test_layouts.py"),
)  # fmt: skip
LOWERING: tuple[Step, ...] = (
    ("tests/lowering/test_choices.py", "tests/lowering/test_rules.py", "tests/lowering/test_reshape.py",
     "tests/lowering/test_tensor_core.py", "tests/lowering/test_mma.py", "tests/lowering/test_positions.py",
     "tests/lowering/test_total.py", "tests/lowering/test_tensor_copies.py"),
    ("tests/lowering/test_operations.py", "tests/programs/test_regressions.py"),
    ("tests/programs/test_programs.py",),
)  # fmt: skip
LANGUAGE: tuple[Step, ...] = (
    ("tests/ir/test_expr.py", "tests/ir/test_verifier.py", "tests/frontend/test_ir.py", "tests/frontend/test_semantics.py",
     "tests/frontend/test_refusals.py", "tests/frontend/test_suggestions.py"),
    ("tests/interpreter", "tests/ui/test_ui.py"),
)  # fmt: skip
WIDE: tuple[Step, ...] = (
    ("tests/passes",),
    ("tests/ir/test_expr.py", "tests/ir/test_verifier.py", "tests/frontend", "tests/interpreter", "tests/ui/test_ui.py"),
    ("tests/programs/test_regressions.py", "tests/lowering/test_choices.py", "tests/lowering/test_rules.py",
     "tests/lowering/test_reshape.py",
     "tests/lowering/test_tensor_core.py", "tests/lowering/test_mma.py", "tests/lowering/test_positions.py",
     "tests/lowering/test_total.py", "tests/lowering/test_barrier_kernels.py", "tests/lowering/test_register_operands.py"),
    ("tests/soundness/test_enumeration.py", "tests/soundness/test_arithmetic.py"),
    ("tests/programs",),
    ("tests/lowering/test_operations.py",),
    ("tests/soundness",),
    ("tests/ui/test_shipped_mutations.py",),
    ("tests/mutation", "tests/kernels"),
    RATCHET,
    ("tests/lowering/test_shipped_results.py", "tests/lowering/test_attention_results.py"),
    ("tests/lowering",),
    ("tests/codegen", "tests/runtime", "tests/bundle", "tests/workers", "tests/cli"),
    ("tests/ir",),
    ("tests/emulator/test_shipped.py", "tests/emulator/test_every_kernel.py", "tests/emulator/test_planted_faults.py"),
    ("tests/emulator",),
    ("tests/audit",),
    ("tests/project", "tests/fuzz/test_hostile_kernels.py", "tests/fuzz/test_slow_kernels.py"),
)  # fmt: skip
"""What does not run the compiler on kernels (the engine, stores, artifacts under attack) is left out."""


RULES = ("*/test_rules_of_*.py", "*/test_schedule_rules_of_*.py", "*/test_meaning_of_*.py")
"""Small tests of single functions, which run against every mistake after those of its layer."""

DEFAULT = "default run:"
"""First word of a step that leaves campaigns out."""
CORE = "core, all failures:"
"""First word of a step that runs the tests of `core` and does not end at the first failure."""


def command(step: Step) -> list[str]:
    """The command line of a step, for the root of a tree."""
    if step == RATCHET:
        return [sys.executable, "-P", "-m", "tilec", "ratchet", "--jobs", "1"]
    marks = "core" if CORE in step else "not gpu and not campaign" if DEFAULT in step else "not gpu"
    return [
        sys.executable, "-P", "-m", "pytest", *([] if CORE in step else ["-x"]), "-q", "--tb=line", "-rfE",
        "-p", "no:cacheprovider", "-n", "0", "-m", marks, *targets(step),
    ]  # fmt: skip


def targets(step: Step) -> list[str]:
    """What a step runs: test files, or the ratchet."""
    return [target for target in step if target not in (CORE, DEFAULT)]


def _files(root: Path, target: str) -> list[str]:
    """The test files of a target that are there."""
    if target in RATCHET:
        return [target]
    if (root / target).is_dir():
        return sorted(path.relative_to(root).as_posix() for path in (root / target).rglob("test_*.py"))
    return [target] if (root / target).exists() else []


def wide_files(root: Path) -> list[str]:
    """The test files of all wide steps."""
    found = (file for step in WIDE if step != RATCHET for target in step for file in _files(root, target))
    return list(dict.fromkeys(found))


def steps(root: Path, path: str, reached: Collection[str] | None = None) -> list[Step]:
    """Steps for a mistake in `path`, without targets that are not there, no target twice. `reached`: the test files that can
    see the mistake, to which the wide steps are limited; None if that is not known."""
    stem = Path(path).stem
    own = [f"tests/{folder}/test_{stem}.py" for folder in ("passes", "lowering", "codegen", "frontend", "ir")]
    mapped: tuple[Step, ...] = LOWERING
    if path.startswith("tilec/passes/"):
        mapped = SCHEDULING if "/schedule/" in path else PROVER
    elif path.startswith(("tilec/frontend/", "tilec/ir/")):
        mapped = (*LANGUAGE, *LOWERING[:2]) if "layout" in stem else LANGUAGE
    elif path.startswith("tilec/codegen/"):
        mapped = (("tests/codegen",), *LOWERING)
    # What a file has of its own runs with the first of its layer: most of the time of a small step is pytest's start.
    mapped = ((*own, *mapped[0]), *mapped[1:])
    rules = sorted(file.relative_to(root).as_posix() for pattern in RULES for file in (root / "tests").glob(pattern))
    mapped = (*mapped, *([tuple(rules)] if rules else []))
    seen: set[str] = set()
    found: list[Step] = []
    for step in (*mapped, *WIDE):
        files = dict.fromkeys(file for target in step for file in _files(root, target))
        there = [file for file in files if file not in seen]
        if step in WIDE and step != RATCHET and reached is not None:
            there = [file for file in there if file in reached]
        seen.update(there)
        if there:
            found.append((DEFAULT, *there) if step in WIDE and step != RATCHET else tuple(there))
    return found
