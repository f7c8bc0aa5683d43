"""The statements about a bundle: provenance after SLSA, a bill of materials after CycloneDX, and that two honest builds agree
on them."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from tests.bundle import samples
from tests.bundle.mutants import split
from tests.signing.scene import BUILDER, NAME, RELEASE, SignedSetup, bundle_bytes, payloads_of
from tilec.artifact.bundle_format import canonical
from tilec.artifact.signature_format import decode_sidecar, decode_statement, encode_sidecar, read_provenance
from tilec.artifact.signing_keys import generate
from tilec.runtime import open_bundle
from tilec.ship.signing.sbom import bill_of_materials
from tilec.ship.signing.sign import signed_envelopes, statements


def schema() -> Any:
    """The validator of CycloneDX 1.6, from the schemas in `cyclonedx-python-lib`."""
    folder = files("cyclonedx.schema") / "_res"
    texts = {
        name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    known = [(one["$id"], Resource.from_contents(one)) for one in texts.values()]
    known += [
        (f"http://cyclonedx.org/schema/{name}.SNAPSHOT.schema.json", one) for (_, one), name in zip(known, texts, strict=True)
    ]
    return jsonschema.Draft7Validator(texts["bom-1.6"], registry=Registry().with_resources(known))


def bill(tmp_path: Path) -> dict[str, Any]:
    """The bill of a sample bundle."""
    (tmp_path / NAME).write_bytes(bundle_bytes())
    with open_bundle(tmp_path / NAME) as bundle:
        return bill_of_materials(bundle, NAME)


def test_the_bill_of_materials_conforms_to_cyclonedx(tmp_path: Path) -> None:
    data, validator = bill(tmp_path), schema()
    assert [error.message for error in validator.iter_errors(data)] == []
    for wrong in (
        {"bomFormat": "x"},
        {"serialNumber": "1"},
        {"components": [{"name": "x"}]},
        {"components": [data["components"][0]] * 2},
    ):
        assert list(validator.iter_errors(data | wrong)), wrong
    references = [one["bom-ref"] for one in (data["metadata"]["component"], *data["components"])]
    assert len(set(references)) == len(references)
    assert {one["ref"] for one in data["dependencies"]} == set(references)


def test_the_bill_of_materials_names_packages_and_code(tmp_path: Path) -> None:
    data = bill(tmp_path)
    package, *kernels = data["components"]
    assert (package["name"], package["version"], package["purl"]) == ("llvmlite", "1", "pkg:pypi/llvmlite@1")
    assert package["properties"] == [{"name": "tilec:sha256-of-its-files", "value": "aa"}]
    assert [one["name"] for one in kernels] == [f"scale-E=bf16-N={n}.cubin" for n in range(3)]
    codes = {sha256(samples.cubin("scale", salt)).hexdigest() for salt in (1, 2)}
    assert {one["hashes"][0]["content"] for one in kernels} == codes
    whole = data["metadata"]["component"]
    assert whole["hashes"] == [{"alg": "SHA-256", "content": sha256(bundle_bytes()).hexdigest()}]


def test_statements_are_about_the_whole_file_and_its_manifest(tmp_path: Path) -> None:
    payloads = payloads_of(tmp_path / NAME, bundle_bytes())
    manifest = split(bundle_bytes())[1]
    for payload in payloads.values():
        data = json.loads(payload)
        assert canonical(data) == payload
        assert data["_type"] == "https://in-toto.io/Statement/v1"
        assert data["subject"] == [
            {"name": NAME, "digest": {"sha256": sha256(bundle_bytes()).hexdigest()}},
            {"name": f"{NAME}#manifest", "digest": {"sha256": sha256(manifest).hexdigest()}},
        ]
    found = read_provenance(decode_statement(payloads["provenance"]))
    assert (found.model, found.arch, found.release, found.builder) == ("tiny-1b", "sm_90a", RELEASE, BUILDER)


def test_provenance_has_the_fields_that_slsa_requires(tmp_path: Path) -> None:
    """The fields that SLSA v1 requires, and its types: https://slsa.dev/spec/v1.0/provenance."""
    predicate = json.loads(payloads_of(tmp_path / NAME, bundle_bytes())["provenance"])["predicate"]
    definition, details = predicate["buildDefinition"], predicate["runDetails"]
    assert definition["buildType"] == "urn:tilec:bundle:v1"
    assert definition["externalParameters"] == {"model": "tiny-1b", "arch": "sm_90a", "release": RELEASE}
    for one in definition["resolvedDependencies"]:
        assert {"uri", "digest"} & one.keys()
        assert one.keys() <= {"uri", "digest", "name", "downloadLocation", "mediaType", "content", "annotations"}
    names = [one["name"] for one in definition["resolvedDependencies"]]
    assert names == ["step", "tuning", "llvmlite"]  # the samples' manifests have no digest of sources
    assert details["builder"] == {"id": BUILDER, "version": {"tilec": "unknown"}}


def test_two_honest_builds_make_the_same_statements(tmp_path: Path) -> None:
    signer, sidecars = generate("ed25519"), list[bytes]()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        payloads = payloads_of(tmp_path / name / NAME, bundle_bytes())
        digest = sha256(bundle_bytes()).hexdigest()
        sidecars.append(encode_sidecar(signed_envelopes(digest, payloads.values(), signer)))
    assert sidecars[0] == sidecars[1]


def test_a_key_makes_one_statement_about_a_bundle(signed_setup: SignedSetup) -> None:
    """Signing again replaces the key's earlier statement; other keys' stay, and statements about another bundle are removed."""
    first, second = signed_setup.signers
    with open_bundle(signed_setup.bundle) as bundle:
        before = decode_sidecar(signed_setup.sidecar.read_bytes())
        again = signed_envelopes(bundle.digest, signed_setup.payloads.values(), first, before)
        assert {frozenset(sign.key_id for sign in one.signatures) for one in again} == {
            frozenset({first.public_key.id, second.public_key.id})
        }
        newer = statements(bundle, RELEASE + 1, BUILDER, {})
        after = signed_envelopes(bundle.digest, newer.values(), first, before)
    releases = {
        sign.key_id: read_provenance(statement).release
        for one in after
        for sign in one.signatures
        if (statement := decode_statement(one.payload)).predicate_type.startswith("https://slsa")
    }
    assert releases == {first.public_key.id: RELEASE + 1, second.public_key.id: RELEASE}
    elsewhere = decode_sidecar(signed_setup.others["another model"][1])
    assert len(signed_envelopes(bundle.digest, newer.values(), first, elsewhere)) == 2


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"_type":"https://in-toto.io/Statement/v1"}', b'{"_type":"x","subject":[]}'])
def test_payloads_that_are_no_statement(text: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        decode_statement(text)
