"""With CNCF's registry and skopeo: bundles pass through third-party programs, and come back to the last bit."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.bundle import samples
from tests.registry.peers import distribution, skopeo
from tests.registry.shipments import sidecar
from tilec.cli.commands import run
from tilec.ship.registry import oci
from tilec.ship.registry.client import Client, referrers_tag
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.reference import read_reference
from tilec.ship.registry.upload import upload

USER = "user:$2b$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu"
"""A line from `htpasswd -B`, for the password `password`."""


@pytest.fixture(scope="module")
def host() -> Generator[str]:
    with distribution() as found:
        yield found


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(["bundle", *arguments])
    return status, *capsys.readouterr()


def test_there_and_back(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two architectures and their attestations under one tag; pulled all together, by name, and by the digest of a manifest."""
    files = list[str]()
    for arch, salts in (("sm_90a", (1, 2, 1)), ("sm_100a", (3,))):
        path = tmp_path / f"tiny-1b-{arch}.bundle"
        path.write_bytes(samples.bundle(arch, salts))
        Path(f"{path}.intoto.jsonl").write_bytes(sidecar(arch))
        files.append(str(path))
    repository = f"oci://{host}/team/kernels"
    status, out, err = command(capsys, "push", "--json", *files, f"{repository}:v1")
    assert (status, err) == (0, "")
    pushed = json.loads(out)
    assert pushed["sent"] == pushed["blobs"] > 0
    status, out, _ = command(capsys, "push", *files, f"{repository}:v1")
    assert status == 0 and f"index {pushed['index']}, 0 of" in out
    for source, options, names in (
        (f"{repository}:v1", (), files),
        (f"{repository}@{pushed['index']}", ("--arch", "sm_90", "--model", "tiny-1b"), files[:1]),
        (f"{repository}@{pushed['manifests'][1]}", (), files[1:]),
    ):
        folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        status, out, err = command(capsys, "pull", source, *options, "--output", str(folder))
        assert (status, err) == (0, "")
        assert sorted(one.name for one in folder.iterdir()) == sorted(
            name for path in names for name in (Path(path).name, f"{Path(path).name}.intoto.jsonl")
        )
        for one in folder.iterdir():
            assert one.read_bytes() == (tmp_path / one.name).read_bytes()
    status, _, err = command(capsys, "pull", f"{repository}:v1", "--arch", "sm_120", "-o", str(tmp_path / "none"))
    assert status == 2 and "error[E0734]" in err and "it has tiny-1b for sm_100a, tiny-1b for sm_90a" in err
    status, _, err = command(capsys, "pull", f"{repository}:v9", "-o", str(tmp_path / "none"))
    assert status == 2 and "error[E0734]" in err and "MANIFEST_UNKNOWN" in err
    assert not (tmp_path / "none").exists()


def test_through_skopeo(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """skopeo copies the index and its referrers to a folder and back under another name."""
    path = tmp_path / "tiny-1b-sm_90a.bundle"
    path.write_bytes(samples.with_proofs_apart())
    Path(f"{path}.intoto.jsonl").write_bytes(sidecar("a"))
    status, out, _ = command(capsys, "push", str(path), f"oci://{host}/one:v1")
    assert status == 0
    index = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{host}/one:v1"))
    assert index["manifests"][0]["artifactType"] == oci.BUNDLE
    subject = index["manifests"][0]["digest"]
    assert f"{path}: manifest {subject}\n" in out
    for tag in ("v1", referrers_tag(subject)):
        layout, back = f"oci:{tmp_path}/layout:{tag}", f"docker://{host}/two/deep:{tag}"
        skopeo("copy", "--all", "--src-tls-verify=false", f"docker://{host}/one:{tag}", layout)
        skopeo("copy", "--all", "--dest-tls-verify=false", layout, back)
    assert command(capsys, "pull", f"oci://{host}/two/deep:v1", "-o", str(tmp_path / "out"))[::2] == (0, "")
    for one in (path, Path(f"{path}.intoto.jsonl")):
        assert (tmp_path / "out" / one.name).read_bytes() == one.read_bytes()
    envelopes = json.loads(
        skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{host}/one:{referrers_tag(subject)}.att")
    )
    assert [layer["mediaType"] for layer in envelopes["layers"]] == [oci.ENVELOPE]


def test_chunks(host: str) -> None:
    """A blob of several chunks arrives intact; an interrupted upload is resumed or restarted."""
    data = bytes(range(256)) * 400
    wanted = oci.describe("x", data)
    with Client(read_reference(f"oci://{host}/chunks"), push=True, limits=Limits(pause_seconds=0)) as client:
        assert upload(client, wanted, data, chunk=30_000)
        assert client.blob(wanted) == data
        assert not upload(client, wanted, data, chunk=30_000)


def test_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with distribution(USER) as host:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        reference, data = read_reference(f"oci://{host}/kept"), b"data"
        with Client(reference, push=True) as client, pytest.raises(RegistryError, match="requires a login"):
            upload(client, oci.describe("x", data), data)
        for password, right in (("password", True), ("wrong", False)):
            both = base64.b64encode(f"user:{password}".encode()).decode()
            (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": both}}}))
            with Client(reference, push=True) as client:
                if right:
                    assert upload(client, oci.describe("x", data), data)
                else:
                    with pytest.raises(RegistryError) as caught:
                        client.blob(oci.describe("x", data))
                    assert caught.value.code == "E0733" and "UNAUTHORIZED" in caught.value.message
