"""The independent prover derives the promises of kernels and refutes false ones; a manifest with other promises is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.audit import samples
from tests.audit.test_proofs import audited, bad
from tilec.audit.contract import disagreements
from tilec.audit.findings import CONFIRMED, REFUTED
from tilec.ir.text.parser import parse_function

ADVANCE = samples.text("advance")


def edited(old: str, new: str) -> str:
    assert ADVANCE.count(old) == 1
    return ADVANCE.replace(old, new)


def test_the_promises_of_a_shipped_kernel_are_confirmed() -> None:
    found = audited(ADVANCE)
    assert {one.verdict for one in found} == {CONFIRMED}
    assert sum(one.property == "values" for one in found) == 5


@pytest.mark.parametrize(
    ("old", "new", "subject"),
    [
        ("ensures %ids 0 .. vocab_size", "ensures %ids 1 .. vocab_size", "store to `ids` within `ensures(ids, 1, vocab_size)`"),
        (
            "ensures %lengths 2 .. 3 above %positions",
            "ensures %lengths 1 .. 2 above %positions",
            "store to `lengths` within `ensures(lengths, 1, 2, above=positions)`",
        ),
        (
            "ensures %positions 1 .. 2 above %positions",
            "ensures %positions 1 .. 2 above %token",
            "store to `positions` within `ensures(positions, 1, 2, above=token)`",
        ),
    ],
)
def test_a_promise_that_does_not_hold_is_refuted(old: str, new: str, subject: str) -> None:
    assert bad(audited(edited(old, new)), REFUTED) == [("values", subject)]


def test_arithmetic_that_a_promise_depends_on_may_not_wrap() -> None:
    """Without a bound on the values of `positions`, adding one may overflow i32."""
    text = edited(next(line for line in ADVANCE.splitlines() if "values %positions" in line) + "\n", "")
    assert ("wrap", "`+`") in bad(audited(text), REFUTED)


def test_equal_integers_are_not_distinct() -> None:
    tir = samples.text("advance_rows")
    line = next(line for line in tir.splitlines() if "ensures %slots" in line)
    assert ("values", "store to `slots`, distinct") in bad(audited(tir.replace(line, f"{line} distinct")), REFUTED)


def test_a_manifest_promises_what_the_tile_ir_does() -> None:
    manifest, function = samples.manifest("advance"), parse_function(ADVANCE)
    assert list(disagreements(manifest, function)) == []
    for promises in ((), (replace(manifest.promises[0], low=manifest.promises[1].low), *manifest.promises[1:])):
        changed = replace(manifest, promises=promises)
        assert list(disagreements(changed, function)) == ["the promises differ from the tile IR's"]
