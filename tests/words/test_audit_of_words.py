"""The audit confirms accesses whose index is computed by these words, from bounds of its own, and no access that is outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import samples
from tests.words.kernels import One
from tests.words.test_proofs_of_moves import scattered
from tilec.audit.run import audit
from tilec.audit.work import Options
from tilec.ir.core import Function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import Proofs, prove
from tilec.runtime import open_bundle

WORDS = (("u32", (32,)), ("f32", (32,)))
INDICES = {
    "the upper half of a product": "tl.gather(b_, tl.bitcast(tl.mulhi(a, 32), tl.i32))",
    "bits of a float": "tl.gather(b_, tl.bitcast(b, tl.i32) & 31)",
    "bits of an integer": "tl.gather(b_, tl.bitcast(a & 31, tl.i32))",
    "other positions": "tl.gather(b_, tl.butterfly(tl.bitcast(a & 31, tl.i32), 0, 5))",
    "taken integers": "tl.gather(b_, tl.take(tl.bitcast(a & 31, tl.i32), tl.bitcast(a & 31, tl.i32), 0))",
    "taken elements": "tl.take(b, tl.bitcast(a & 31, tl.i32), 0)",
    "sorted integers": "tl.gather(b_, tl.sort(tl.bitcast(a & 31, tl.i32), 0))",
}


def verdicts(tir: str, folder: Path) -> set[str]:
    return set(found_by(tir, folder).values())


def found_by(tir: str, folder: Path) -> dict[str, str]:
    """The verdict on each obligation, by its subject."""
    path = folder / "a.bundle"
    path.write_bytes(samples.bundle({"k": tir}))
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(launches=0))
    obligations = [one for artifact in report["artifacts"] for one in artifact["obligations"]]
    return {f"{one['property']} of {one['subject']}": one["verdict"] for one in obligations}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_inside_and_a_larger_one_is_not_confirmed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger one has the proofs of the other, as from a prover with a mistake."""
    function = One(INDICES[name], "f32", (32,), WORDS).function()
    tir = print_function(function)
    assert verdicts(tir, tmp_path) == {"confirmed"}
    larger = tir.replace("{value = 32} : u32", "{value = 33} : u32").replace("{value = 31} :", "{value = 63} :")
    assert larger != tir
    proofs = prove(function)

    def mistaken(_: Function) -> Proofs:
        return proofs

    monkeypatch.setattr(samples, "prove", mistaken)
    assert verdicts(larger, tmp_path) - {"confirmed"}


@pytest.mark.parametrize(
    ("index", "old", "new"),
    [("tl.butterfly(tl.arange(64) & 63, 0, 5)", "{value = 63}", "{value = 62}"),
     ("tl.sort((a, tl.arange(64) & 63), 0)[1]", "{value = 63}", "{value = 62}"),
     ("tl.argsort(a, 0) + 0", "{value = 0}", "{value = 1}"),
     ("tl.take(tl.arange(64) & 63, 63 - tl.arange(64), 0)", "{value = 63}", "{value = 62}")],
)  # fmt: skip
def test_reordered_positions_are_distinct_and_no_others(
    index: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That every element is written is unknown to the audit: it has no witness of a sort."""
    function = scattered(index).function()
    tir = print_function(function)
    found = found_by(tir, tmp_path)
    assert found.pop("coverage of `out`") == "unknown"
    assert set(found.values()) == {"confirmed"}
    assert old in tir
    proofs = prove(function)

    def mistaken(_: Function) -> Proofs:
        return proofs

    monkeypatch.setattr(samples, "prove", mistaken)
    found = found_by(tir.replace(old, new), tmp_path)
    assert {found["race of `out` written once"], found["bounds of scatter to `out`"]} != {"confirmed"}


@pytest.mark.parametrize(
    ("index", "old", "new"),
    [("(tl.minimum(a, 31)).astype(tl.i64)", "{value = 31} : u64", "{value = 18446744073709551615} : u64"),
     ("a % 32", "{value = 32} : u64", "{value = 33} : u64"),
     ("tl.minimum(tl.maximum(a, 5) - 5, 31)", '"max"', '"min"'),
     ("tl.minimum(a >> 1, 30) + 1", "{value = 30}", "{value = 31}")],
    ids=["conversion", "remainder", "below zero", "sum"],
)  # fmt: skip
def test_indices_of_u64_wrap_at_their_own_ends(
    index: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changed one converts numbers from 2^63 on, reads past the end, or falls below zero."""
    function = One(f"tl.gather(b_, {index})", "f32", (32,), (("u64", (32,)), ("f32", (32,)))).function()
    tir, proofs = print_function(function), prove(function)
    assert verdicts(tir, tmp_path) == {"confirmed"}

    def mistaken(_: Function) -> Proofs:
        return proofs

    monkeypatch.setattr(samples, "prove", mistaken)
    changed = tir.replace(old, new)
    assert changed != tir and verdicts(changed, tmp_path) - {"confirmed"}
