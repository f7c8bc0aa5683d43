"""Whatever a registry does, a pull ends with the family's code, leaves no file, and reads no more than necessary."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.registry.changes import CHANGES, attempt, stock
from tests.registry.lies import FAMILIES, Family
from tests.registry.server import Registry, Request, Response, served
from tests.registry.shipments import shipment, sidecar
from tilec.artifact.bundle_format import FORMAT, WITH_OBLIGATIONS
from tilec.runtime import BundleError
from tilec.ship.finder import checked
from tilec.ship.registry import oci
from tilec.ship.registry.client import Client, referrers_tag
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Wanted, pull
from tilec.ship.registry.push import push
from tilec.ship.registry.reference import read_reference

QUICK = Limits(stall_seconds=5, seconds=0.5, least_rate=1 << 40, attempts=2, pause_seconds=0)
PATIENT = Limits(attempts=3, pause_seconds=0)
MAX_READ = 8 * oci.MAX_DOCUMENT
"""Bytes: the largest document, and the kernel's socket buffers on both sides, of earlier responses too."""


@pytest.fixture(scope="module")
def stocked() -> Generator[tuple[Registry, str]]:
    """A registry with two versions, and its reference without tag."""
    registry = Registry()
    with served(registry) as repository:
        stock(repository)
        yield registry, repository


@pytest.fixture
def password(stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has a password for the registry."""
    both = base64.b64encode(b"user:password").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {stocked[0].host: {"auth": both}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_tampered_response_is_refused(family: Family, stocked: tuple[Registry, str], tmp_path: Path) -> None:
    registry, repository = stocked
    before, request = registry.sent, len(registry.requests)
    registry.tamper = lambda one, response: family.tamper(registry, one, response)
    folder = tmp_path / "out"
    limits = QUICK if "byte by byte" in family.name or "interim" in family.name else PATIENT
    try:
        with (
            Client(read_reference(f"{repository}:v1"), limits=limits) as client,
            pytest.raises((RegistryError, BundleError)) as caught,
        ):
            pull(client, Wanted(arch="sm_90a"), folder, checked)
    finally:
        registry.tamper = None
    assert caught.value.code == family.code, caught.value
    assert not folder.exists() or list(folder.iterdir()) == []
    assert registry.sent - before <= MAX_READ
    assert len(registry.requests) - request < 30


def test_a_bundle_of_each_format(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    """Bundles of both formats under one tag arrive as they were; only their types say which format they have."""
    _, repository = stocked
    both = [shipment("sm_90a", form=FORMAT), shipment("sm_100a", form=WITH_OBLIGATIONS)]
    with Client(read_reference(repository), push=True) as client:
        push(client, both, "formats")
    with Client(read_reference(f"{repository}:formats")) as client:
        types = {one.annotations[oci.ARCH]: one.artifact_type for one in client.document("formats").layers}
        pulled = pull(client, Wanted(), tmp_path / "out", checked)
    assert types == {"sm_90a": oci.BUNDLES[FORMAT], "sm_100a": oci.BUNDLES[WITH_OBLIGATIONS]} and len(set(types.values())) == 2
    assert {one.arch: one.path.read_bytes() for one in pulled} == {one.arch: one.data for one in both}


def test_a_bundle_under_the_type_of_another_format(
    stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    _, repository = stocked
    with monkeypatch.context() as lie, Client(read_reference(repository), push=True) as client:
        lie.setitem(oci.BUNDLE_MANIFESTS, FORMAT, oci.BUNDLE_MANIFESTS[WITH_OBLIGATIONS])
        push(client, [shipment("sm_90a", form=FORMAT)], "mistyped")
    with Client(read_reference(f"{repository}:mistyped")) as client, pytest.raises(RegistryError) as caught:
        pull(client, Wanted(), tmp_path / "out", checked)
    assert caught.value.code == "E0732" and "names another format than its bundle's" in caught.value.message


def test_a_bundle_that_differs_from_its_manifest(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    """Index and manifest tell the same lie: the bundle itself is of another architecture."""
    _, repository = stocked
    other = shipment("sm_100a", (5,))
    with Client(read_reference(repository), push=True) as client:
        push(client, [type(other)(other.data, other.model, "sm_90a", other.sha256)], "renamed")
    with Client(read_reference(f"{repository}:renamed")) as client, pytest.raises(BundleError) as caught:
        pull(client, Wanted(arch="sm_90a"), tmp_path / "out", checked)
    assert caught.value.code == "E0706"
    assert "what was pulled" in caught.value.message
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.campaign
def test_a_change_gives_the_bundle_or_nothing(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    """A part of the campaign of `ci/bench/judges.py registry_tampering`."""
    registry, repository = stocked
    found = [attempt(registry, repository, change, seed, tmp_path / "out") for change in CHANGES.values() for seed in range(8)]
    assert any(found) and not all(found)


def attested(registry: Registry, layers: list[bytes]) -> None:
    """One attestation of the bundle for `sm_90a` that names all of these, by the fallback tag."""
    subject = next(
        digest for digest, (_, text) in registry.manifests.items()
        if digest.startswith("sha256:") and b'"vnd.tilec.arch":"sm_90a"' in text and b'"layers"' in text
    )  # fmt: skip
    named = [oci.describe(oci.ATTESTATIONS, data) for data in layers]
    registry.blobs |= {one.digest: data for one, data in zip(named, layers, strict=True)}
    kind = oci.describe(oci.MANIFEST, registry.manifests[subject][1])
    text = oci.manifest(oci.ATTESTATIONS, oci.describe(oci.EMPTY, oci.EMPTY_BYTES), named, subject=kind)
    one = oci.describe(oci.MANIFEST, text)
    registry.manifests[one.digest] = (oci.MANIFEST, text)
    registry.manifests[referrers_tag(subject)] = (oci.INDEX, oci.index([one] * 100))


@pytest.mark.parametrize("many", [False, True])
def test_attestations_are_fetched_once_and_bounded(many: bool, tmp_path: Path) -> None:
    registry = Registry()
    with served(registry) as repository, Client(read_reference(f"{repository}:v1"), push=True) as client:
        push(client, [shipment()], "v1")
        attested(registry, [b"%d\n" % number for number in range(3000)] if many else [sidecar("a")] * 3000)
        registry.requests.clear()
        if many:
            with pytest.raises(RegistryError, match="more than 16 of them") as caught:
                pull(client, Wanted(), tmp_path, checked)
            assert caught.value.code == "E0732" and not list(tmp_path.iterdir())
        else:
            (found,) = pull(client, Wanted(), tmp_path, checked)
            assert (tmp_path / f"{found.path.name}.intoto.jsonl").read_bytes() == sidecar("a")
    assert len(registry.requests) < 15


def test_a_whole_pull_has_a_deadline(tmp_path: Path) -> None:
    """Each exchange is within its time limit, but their sum is not."""
    registry = Registry()
    with served(registry) as repository:
        with Client(read_reference(repository), push=True) as client:
            push(client, [shipment()], "v1")

        def tamper(request: Request, response: Response) -> Response:
            time.sleep(0.02)
            return response

        registry.tamper = tamper
        limits = Limits(total_seconds=0.03, least_rate=1 << 40)
        with Client(read_reference(f"{repository}:v1"), limits=limits) as client, pytest.raises(RegistryError) as caught:
            pull(client, Wanted(), tmp_path / "out", checked)
    assert caught.value.code == "E0731" and "took too long" in caught.value.message
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_an_unmodified_registry_works(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    """This shows that the lies cause the refusals."""
    _, repository = stocked
    with Client(read_reference(f"{repository}:v1")) as client:
        found = pull(client, Wanted(), tmp_path, checked)
    assert [one.arch for one in found] == ["sm_100a", "sm_90a"]
    assert [one.attested for one in found] == [False, True]
    for one in found:
        assert one.path.read_bytes() == shipment(one.arch, (5,) if one.arch == "sm_100a" else (1, 2, 1)).data
    assert (tmp_path / "tiny-1b-sm_90a.bundle.intoto.jsonl").read_bytes() == sidecar("new")
    assert len(list(tmp_path.iterdir())) == 3
