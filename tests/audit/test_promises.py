"""The independent prover derives the promises of kernels and refutes false ones; a manifest with other promises is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import shipped
from tests.audit import samples
from tests.audit.test_proofs import audited, bad
from tests.passes.test_distinct_rows import BROKEN, BY_BLOCKS, IN_A_TILE, KEPT, PUT, in_a_row, kernel
from tilec.audit.contract import disagreements
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function

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


def about_rows(function: Function) -> set[str]:
    """Verdicts on stores whose integers are promised to differ in each row."""
    found = audited(print_function(function))
    return {one.verdict for one in found if one.property == "values" and one.subject.endswith(", distinct in each row")}


@pytest.mark.parametrize("name", KEPT)
def test_rows_that_differ_are_confirmed(name: str, tmp_path: Path) -> None:
    """All but those whose proof counts keys in two parts of an axis: the audit takes a sort for any permutation."""
    lines, shape = KEPT[name]
    counted = name.startswith(("a part", "the last part", "declared"))
    assert about_rows(in_a_row(tmp_path, lines, **shape)) == {UNKNOWN if counted else CONFIRMED}


@pytest.mark.parametrize("name", BROKEN)
def test_rows_that_may_not_differ_are_not_confirmed(name: str, tmp_path: Path) -> None:
    lines, shape = BROKEN[name]
    assert about_rows(in_a_row(tmp_path, lines, **shape)) - {CONFIRMED}


def test_the_router_is_confirmed() -> None:
    """The experts of a token differ: keys contain the number of their expert, and a sort takes each once."""
    constants = {"E": "bf16", "X": 128, "C": 8, "NORMALIZE": True, "EXPERTS": 128}
    router = load_kernel(shipped.ROOT / "kernels_src" / "route_experts.py", constants, root=shipped.ROOT)
    assert {one.verdict for one in audited(print_function(router))} == {CONFIRMED}
    assert about_rows(router) == {CONFIRMED}


@pytest.mark.parametrize(("grid", "store", "code"), [BY_BLOCKS, IN_A_TILE], ids=["blocks", "tile"])
def test_a_reader_of_rows_that_differ_is_confirmed(tmp_path: Path, grid: str, store: str, code: str) -> None:
    right, wrong = (
        {one.verdict for one in audited(print_function(kernel(tmp_path, text))) if one.property == "race"}
        for text in (PUT.format(grid=grid, store=store, flags=flags) for flags in (", distinct_in_rows=True", ""))
    )
    assert right == {CONFIRMED}
    assert REFUTED in wrong


def test_a_manifest_promises_what_the_tile_ir_does() -> None:
    manifest, function = samples.manifest("advance"), parse_function(ADVANCE)
    assert list(disagreements(manifest, function)) == []
    for promises in ((), (replace(manifest.promises[0], low=manifest.promises[1].low), *manifest.promises[1:])):
        changed = replace(manifest, promises=promises)
        assert list(disagreements(changed, function)) == ["the promises differ from the tile IR's"]
