"""The audit confirms accesses whose index is computed by these words, from bounds of its own, and no access that is outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import samples
from tests.words.kernels import One
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
}


def verdicts(tir: str, folder: Path) -> set[str]:
    path = folder / "a.bundle"
    path.write_bytes(samples.bundle({"k": tir}))
    with open_bundle(path) as bundle:
        report = audit(bundle, Options(launches=0))
    return {one["verdict"] for artifact in report["artifacts"] for one in artifact["obligations"]}


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
