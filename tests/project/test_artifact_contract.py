"""The manifest of an artifact is compared with its tile IR in all that a launcher enforces and a caller relies on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.bundle import samples as stubs
from tests.cache.test_products import FIELDS, KEY, parts
from tilec.artifact.records import PROOF_FIELDS, Manifest, json_bytes, parameter_specs, to_json
from tilec.cache import Store
from tilec.cache.products import SEAL, encode, fetch
from tilec.cache.remote.address import Address
from tilec.cache.remote.envelope import pack
from tilec.cache.remote.remote import Remote, Settings
from tilec.cache.remote.signer import signer_of
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.project.build.contract import contract_difference

PTX = """
.visible .entry {entry}(
{parameters})
.reqntid 128
{{
griddepcontrol.wait;
}}
"""
KINDS = {"pointer": ".u64 .ptr .global .align 1", "dim": ".u32", "stride": ".u64", "scalar": ".u32"}


def products(name: str) -> dict[str, bytes]:
    """What the pipeline makes of a shipped kernel, but for its code."""
    function = shipped.load(name, {})
    proofs = prove(function)
    record = {field: to_json(getattr(proofs, field)) for field in PROOF_FIELDS if field != "unsafe"} | {"unsafe": []}
    record = {field: value for field, value in record.items() if value or field != "promises"}
    tensors, scalars = parameter_specs(function)
    abi = [{"kind": "pointer", "name": one.name} for one in tensors]
    abi += [{"kind": "stride" if dim in function.strides else "dim", "name": dim} for dim in function.dims]
    abi += [{"kind": "scalar", "name": one.name} for one in scalars]
    manifest = stubs.manifest(name, b"", dict(function.constants)) | record
    manifest |= {"tensors": to_json(tensors), "scalars": to_json(scalars), "abi": abi, "grid": to_json(function.grid)}
    manifest |= {"tensor_maps": [], "block": 128, "dependent_launch": True}
    parts = {"proofs": record, "schedule": manifest["schedule"]}
    manifest["digests"] |= {part: hashlib.sha256(json_bytes(value)).hexdigest() for part, value in parts.items()}
    parameters = ",\n".join(f"\t.param {KINDS[slot['kind']]} p{index}" for index, slot in enumerate(abi)) + "\n"
    ptx = PTX.format(entry=manifest["entry"], parameters=parameters)
    return {"json": json_bytes(manifest), "tir": print_function(function).encode(), "ptx": ptx.encode()}


def forged(made: dict[str, bytes], **fields: Any) -> dict[str, bytes]:
    """Other products whose digest of the proofs was computed again, as by who stores them."""
    manifest = json.loads(made["json"]) | fields
    record = {name: manifest[name] for name in PROOF_FIELDS if name in manifest}
    manifest["digests"]["proofs"] = hashlib.sha256(json_bytes(record)).hexdigest()
    return made | {"json": json_bytes(manifest)}


@pytest.mark.parametrize("name", ["advance", "advance_rows", "add", "gather_row", "embedding"])
def test_what_the_pipeline_makes_agrees(name: str) -> None:
    assert contract_difference(products(name)) == ""


@pytest.mark.parametrize("field", [name for name in PROOF_FIELDS if name not in ("obligations", "unsafe")])
def test_nothing_that_a_launcher_enforces_can_be_left_out_or_changed(field: str) -> None:
    made = products("advance")
    stated = json.loads(made["json"])[field]
    assert stated
    for value in ([], stated[1:], stated[:-1], [*stated, stated[0]], [*reversed(stated)]):
        if value != stated:
            assert (
                contract_difference(forged(made, **{field: value})) == f"the {field} of its manifest and of its tile IR differ"
            )


def test_a_promise_that_says_more_is_refused() -> None:
    made = products("advance")
    first, *others = json.loads(made["json"])["promises"]
    for change in ({"low": 5}, {"high": ["+", first["high"], 1]}, {"distinct": True}):
        assert "promises" in contract_difference(forged(made, promises=[first | change, *others]))


def test_the_proofs_are_those_of_the_digest() -> None:
    made = products("advance")
    manifest = json.loads(made["json"])
    changed = made | {"json": json_bytes(manifest | {"unsafe": ["k.py:1:1: trust me"]})}
    assert contract_difference(changed) == "the proofs of its manifest are not those of their digest"
    assert {*PROOF_FIELDS} <= {*Manifest.__dataclass_fields__}


def test_a_refused_entry_leaves_nothing_in_the_one_of_the_next_remote(tmp_path: Path) -> None:
    """The first remote's entry has one product more, and the second one's is right."""
    honest, seen = parts(), list[set[str]]()
    for name, outputs in (("liar", honest | {"extra": b"1"}), ("honest", honest)):
        folder = tmp_path / name
        signer = signer_of(b"")
        data = pack(KEY, encode("artifact", FIELDS, outputs), 1, signer)
        with contextlib.closing(Remote(Settings((Address(f"file://{folder}", False, 20.0),)))) as remote:
            remote.guards[0].call(lambda layer, data=data: layer.put(KEY, data, replace=True))

    def difference(products: Any) -> str:
        seen.append({*products})
        return ""

    with contextlib.closing(Store(tmp_path / "store")) as store:
        store.remote = Remote(Settings(tuple(Address(f"file://{tmp_path / name}", False, 20.0) for name in ("liar", "honest"))))
        found = fetch(store, KEY, "artifact", FIELDS, "k", difference)
        assert found is not None and found.outputs == honest and SEAL not in found.outputs
        assert seen == [{*honest}]
        assert any("its products are not those that an artifact has" in one for one in store.remote.problems)
        store.remote.close()
