"""Which tests are run against a mistake, in what order: the file's own tests first, then the layer's, then everything wide.

A step is a list of pytest targets that run in one process. The wide steps are the same for all files, cheap ones first.
"""

from __future__ import annotations

from pathlib import Path

Step = tuple[str, ...]
PROVER: tuple[Step, ...] = (
    ("tests/passes/test_prove.py", "tests/passes/test_ranges.py", "tests/passes/test_integer_sets.py",
     "tests/passes/test_contract.py"),
    ("tests/ui/test_ui.py", "tests/soundness/test_enumeration.py"),
    ("tests/soundness/test_random_kernels.py",),
)  # fmt: skip
SCHEDULING: tuple[Step, ...] = (
    ("tests/passes/test_staging.py", "tests/passes/test_layouts.py", "tests/passes/test_anchors.py",
     "tests/passes/test_reshape_layouts.py", "tests/passes/test_overlap.py", "tests/passes/test_canonicalize.py"),
    ("tests/lowering/test_mma.py", "tests/lowering/test_rules.py", "tests/lowering/test_meeting_kernels.py",
     "tests/lowering/test_held_operands.py"),
)  # fmt: skip
LOWERING: tuple[Step, ...] = (
    ("tests/lowering/test_rules.py", "tests/lowering/test_reshape.py", "tests/lowering/test_tensor_core.py",
     "tests/lowering/test_mma.py"),
    ("tests/lowering/test_operations.py",),
    ("tests/programs/test_programs.py",),
)  # fmt: skip
LANGUAGE: tuple[Step, ...] = (
    ("tests/ir", "tests/frontend/test_ir.py", "tests/frontend/test_semantics.py", "tests/frontend/test_refusals.py"),
    ("tests/interpreter", "tests/ui/test_ui.py"),
)
WIDE: tuple[Step, ...] = (
    ("tests/passes",),
    ("tests/ir", "tests/frontend", "tests/interpreter", "tests/ui/test_ui.py"),
    ("tests/lowering",),
    ("tests/programs/test_programs.py",),
    ("tests/soundness",),
    ("tests/codegen", "tests/runtime", "tests/golden", "tests/bundle/test_ratchet.py"),
    ("tests/emulator", "tests/audit"),
    ("tests/kernels", "tests/mutation", "tests/ui/test_shipped_mutations.py"),
)
SCHEDULING_FILES = (
    "staging", "staged_loads", "staged_products", "layout", "anchors", "warpgroups", "overlap", "versioning", "canonicalize",
    "folding", "prepare", "meetings", "meeting_check", "conversions", "in_range",
)  # fmt: skip


def steps(root: Path, path: str) -> list[Step]:
    """Steps for a mistake in `path`, without targets that are not there, no target twice."""
    stem = Path(path).stem
    own = [f"tests/{folder}/test_{stem}.py" for folder in ("passes", "lowering", "codegen", "frontend", "ir")]
    mapped: tuple[Step, ...] = LOWERING
    if path.startswith("tilec/passes/"):
        mapped = SCHEDULING if stem in SCHEDULING_FILES else PROVER
    elif path.startswith(("tilec/frontend/", "tilec/ir/")):
        mapped = (*LANGUAGE, *LOWERING[:2]) if "layout" in stem else LANGUAGE
    elif path.startswith("tilec/codegen/"):
        mapped = (("tests/codegen",), *LOWERING)
    seen: set[str] = set()
    found: list[Step] = []
    for step in (tuple(own), *mapped, *WIDE):
        there = [target for target in step if (root / target).exists() and target not in seen]
        seen.update(there)
        if there:
            found.append(tuple(there))
    return found
