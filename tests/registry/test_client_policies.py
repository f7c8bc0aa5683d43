"""What a client pulls under a policy: signatures, refusals that hide no other bundle, blobs of earlier bundles."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.registry.server import BLOBS, Registry, Request, Response, served
from tests.registry.shipments import shipment
from tests.signing import scene
from tilec.cli.commands import run
from tilec.runtime import BundleError, open_bundle
from tilec.ship.finder import checked, find_bundle
from tilec.ship.registry import oci
from tilec.ship.registry.client import Client
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Refused, Wanted, pull
from tilec.ship.registry.push import Shipment, push
from tilec.ship.registry.reference import read_reference


def test_signatures_are_pulled_and_checked_by_a_policy(tmp_path: Path) -> None:
    """A signed bundle opens under the policy after the pull; an unsigned one, or one signed by others, is not even stored."""
    folder = tmp_path / "scene"
    folder.mkdir()
    setup = scene.make(folder.resolve())
    data, check = setup.sound[scene.NAME], partial(checked, trust=setup.policy)
    for tag, attestations in (
        ("signed", setup.sound[scene.SIDECAR]),
        ("strangers", setup.others["strangers"][1]),
        ("bare", b""),
    ):
        one, out = Shipment(data, "tiny-1b", "sm_90a", hashlib.sha256(data).hexdigest(), attestations), tmp_path / tag
        with served(Registry()) as repository, Client(read_reference(f"{repository}:{tag}"), push=True) as client:
            push(client, [one], tag)
            if tag == "signed":
                (found,) = pull(client, Wanted(), out, check)
                with open_bundle(found.path, trust=setup.policy) as bundle:
                    assert bundle.signed is not None and bundle.signed.release == scene.RELEASE
            else:
                with pytest.raises(BundleError) as caught:
                    pull(client, Wanted(), out, check)
                assert caught.value.code == "E0714" and ".tmp-" not in caught.value.message
                assert list(out.iterdir()) == []


def signed_among(folder: Path, repository: str) -> scene.SignedSetup:
    """Pushes, under `v1`, the signed bundle of a scene between an unsigned one with the same dimensions and one by
    strangers."""
    folder.mkdir()
    setup = scene.make(folder.resolve())
    data = setup.sound[scene.NAME]
    ours = Shipment(data, "tiny-1b", "sm_90a", hashlib.sha256(data).hexdigest(), setup.sound[scene.SIDECAR])
    others = (shipment(model="tiny-0b"), shipment(model="tiny-9b", attestations=setup.others["strangers"][1]))
    with Client(read_reference(f"{repository}:v1"), push=True) as client:
        push(client, [others[0], ours, others[1]], "v1")
    return setup


def test_what_a_policy_refuses_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the engine's search, and in the command, which names the bundles it skipped and exits with status 1."""
    with served(Registry()) as repository:
        setup = signed_among(tmp_path / "scene", repository)
        monkeypatch.setenv("TILEC_REGISTRY", f"{repository}:v1")
        with find_bundle(
            {"hidden_size": 128, "tied": True, "eps": 1e-6, "dtype": "bf16"}, "sm_90a", str(setup.policy)
        ) as found:
            assert found.model == "tiny-1b" and found.signed is not None
        names = sorted(os.listdir(found.path.parent))
        assert names == [scene.NAME, scene.SIDECAR]
        assert len(caplog.messages) == 2
        assert all(f"`{one}` for `sm_90a` of `{repository}:v1`" in caplog.text for one in ("tiny-0b", "tiny-9b"))
        arguments = ["bundle", "pull", f"{repository}:v1", "-o", str(tmp_path / "out"), "--trust", str(setup.policy)]
        assert run(arguments) == 1
        out, err = capsys.readouterr()
        assert out.count("\n") == 1 and "tiny-1b-sm_90a.bundle: intact" in out
        assert err.count("warning: skipped a bundle: ") == 2 and "`tiny-0b`" in err and "(E0714)" in err
        assert sorted(os.listdir(tmp_path / "out")) == names
        assert run([*arguments, "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert [one["model"] for one in report["bundles"]] == ["tiny-1b"]
        assert sorted((one["model"], one["code"]) for one in report["refused"]) == [("tiny-0b", "E0714"), ("tiny-9b", "E0714")]
        assert run([*arguments, "--model", "tiny-0b"]) == 1
        assert "error[E0714]" in capsys.readouterr().err and sorted(os.listdir(tmp_path / "out")) == names


def test_a_bundle_that_is_not_what_it_must_be_hides_no_other(tmp_path: Path) -> None:
    """Its manifest's blob is missing, or another; if nothing else was requested, that is the error."""
    registry = Registry()
    with served(registry) as repository:
        with Client(read_reference(f"{repository}:v1"), push=True) as client:
            push(client, [shipment(model="tiny-0b", salts=(7, 8)), shipment()], "v1")
        index = json.loads(registry.manifests["v1"][1])["manifests"]
        first = next(one["digest"] for one in index if one["annotations"][oci.MODEL] == "tiny-0b")
        blob = json.loads(registry.manifests[first][1])["config"]["digest"]
        data = registry.blobs[blob]
        for change, code in ((data[:-1] + b"x", "E0732"), (None, "E0734")):
            registry.blobs.pop(blob)
            if change is not None:
                registry.blobs[blob] = change
            refused = list[Refused]()
            with Client(read_reference(f"{repository}:v1"), limits=Limits(attempts=4, pause_seconds=0)) as client:
                (found,) = pull(client, Wanted(), tmp_path, checked, report_refused=refused.append)
                assert found.path.read_bytes() == shipment().data
                ((model, error),) = [(one.model, one.error) for one in refused]
                assert model == "tiny-0b" and isinstance(error, RegistryError) and error.code == code
                with pytest.raises(RegistryError, match=code):
                    pull(client, Wanted(model="tiny-0b"), tmp_path, checked, report_refused=refused.append)
        assert os.listdir(tmp_path) == ["tiny-1b-sm_90a.bundle"]


@pytest.mark.parametrize("kind", ["pipe", "link", "other bytes"])
def test_a_blob_of_an_earlier_bundle_is_taken_from_a_plain_file_alone(kind: str, tmp_path: Path) -> None:
    """If that path has anything else, the blob is fetched again, without blocking and without following links."""
    registry, out = Registry(), tmp_path / "out"
    with served(registry) as repository:
        with Client(read_reference(f"{repository}:v1"), push=True) as client:
            push(client, [shipment(model="tiny-0b"), shipment()], "v1")
        swapped = list[Path]()

        def swap(request: Request, response: Response) -> Response:
            for path in out.glob("*.bundle") if not swapped else ():
                swapped.append(path)
                path.rename(tmp_path / "elsewhere")
                if kind == "pipe":
                    os.mkfifo(path)
                elif kind == "link":
                    path.symlink_to(tmp_path / "elsewhere")
                else:
                    path.write_bytes(bytes((tmp_path / "elsewhere").stat().st_size))
            return response

        registry.tamper = swap
        registry.requests.clear()
        with Client(read_reference(f"{repository}:v1"), limits=Limits(attempts=4, pause_seconds=0)) as client:
            found = pull(client, Wanted(), out, checked)
    unswapped = next(one.path for one in found if one.path not in swapped)
    assert unswapped.read_bytes() in (shipment().data, shipment(model="tiny-0b").data)
    blobs = [request.path for request in registry.requests if request.path.startswith(BLOBS)]
    assert len(set(blobs)) < len(blobs)  # fetched again
