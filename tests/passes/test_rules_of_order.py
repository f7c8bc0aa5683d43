"""A proof is the same text however memory is laid out: nothing in it follows from the addresses of unknowns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests import shipped
from tilec.artifact.records import to_json
from tilec.passes.prover import prove
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.terms import Kind


def record(name: str) -> list[Any]:
    proofs = prove(shipped.load(name))
    return [to_json(getattr(proofs, part)) for part in ("obligations", "launch_checks", "value_checks", "no_alias", "promises")]


@pytest.mark.parametrize("name", ["advance", "advance_rows", "decode_attention"])
def test_a_proof_does_not_depend_on_the_addresses_of_its_unknowns(name: str) -> None:
    first, kept = record(name), list[object]()
    for seed in range(6):
        sizes = random.Random(seed)
        kept += [bytearray(sizes.randrange(16, 400)) for _ in range(2000)]
        del kept[:: sizes.randrange(2, 5)]
        assert record(name) == first


def test_unknowns_of_two_tables_have_an_order() -> None:
    atoms = [table.make("n", Kind.SYMBOL, "N", (0, 9)) for table in (Atoms(), Atoms(), Atoms())]
    assert len({atom.uid for atom in atoms}) == 3 and atoms == sorted(atoms, key=lambda atom: atom.uid)
