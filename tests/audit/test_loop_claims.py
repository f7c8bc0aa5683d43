"""The audit shows claims of loops by itself, and knows only invariants that it has shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import samples
from tests.passes.test_loop_claims import LOOPS, accepted, source
from tilec.audit.run import audit
from tilec.audit.work import Options
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import Proofs, prove
from tilec.runtime import open_bundle


@pytest.mark.parametrize("name", ["binary search", "two ends", "packing until a number", "a loop in a loop"])
def test_what_the_prover_shows_is_confirmed(name: str, tmp_path: Path) -> None:
    function = accepted(source(LOOPS[name]))
    assert isinstance(function, Function)
    assert set().union(*verdicts_on(print_function(function), tmp_path).values()) == {"confirmed"}


MISTAKES = {
    "an element too far": ("binary search", "lo = middle + 1", "lo = middle + 2", "invariant of after an iteration"),
    "a wrong start": (
        "binary search",
        "lo, hi = i32(0), N",
        "lo, hi = i32(-1), N",
        "invariant of where the loop starts",
    ),
    "a pass that changes nothing": ("binary search", "lo = middle + 1", "lo = middle", "progress of `while` ends"),
    "a number of 0": (
        "halving",
        "while s > 0",
        "while s > -1",
        "progress of `while` goes on with a positive number",
    ),
    "two elements packed at once": ("packing", "s = s + 1", "s = s + 2", "invariant of after an iteration"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_not_confirmed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the proofs of the right loop, as from a prover with a mistake."""
    loop, old, new, broken = MISTAKES[name]
    right = accepted(source(LOOPS[loop]))
    assert isinstance(right, Function) and old in LOOPS[loop]
    proofs = prove(right)

    def mistaken(_: Function) -> Proofs:
        return proofs

    wrong = text_of(LOOPS[loop].replace(old, new), tmp_path)
    monkeypatch.setattr(samples, "prove", mistaken)
    found = verdicts_on(wrong, tmp_path)
    assert found[broken] - {"confirmed"}
    if "invariant" in broken:  # then no proof has it
        assert found["bounds of store to `p`" if loop == "packing" else "bounds of load from `x`"] - {"confirmed"}


def verdicts_on(tir: str, folder: Path) -> dict[str, set[str]]:
    """The verdicts on obligations of one name."""
    path = folder / "a.bundle"
    path.write_bytes(samples.bundle({"k": tir}))
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(launches=0))
    found: dict[str, set[str]] = {}
    for artifact in report["artifacts"]:
        for one in artifact["obligations"]:
            found.setdefault(f"{one['property']} of {one['subject']}", set()).add(one["verdict"])
    return found


def text_of(loop: str, folder: Path) -> str:
    """The tile IR of a kernel that the prover refuses."""

    path = folder / "k.py"
    path.write_text(source(loop), encoding="utf-8")
    text = print_function(load_kernel(path, {}, root=folder))
    parse_function(text)
    return text
