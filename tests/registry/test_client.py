"""The client's requests: credentials only to their owner, ranges after a broken connection, no upload of what exists
already."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.registry.server import BLOBS, Registry, Request, Response, served
from tests.registry.shipments import shipment, sidecar
from tilec.cli.commands import run
from tilec.ship.finder import checked
from tilec.ship.registry import oci
from tilec.ship.registry.client import Client, referrers_tag
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Wanted, pull
from tilec.ship.registry.push import Pushed, push
from tilec.ship.registry.reference import read_reference
from tilec.ship.registry.upload import upload
from tilec.untrusted.temporary_files import sweep

LIMITS = Limits(attempts=4, pause_seconds=0)
BASIC = "Basic " + base64.b64encode(b"user:password").decode()


@pytest.fixture
def stocked() -> Generator[tuple[Registry, str]]:
    registry = Registry()
    with served(registry) as repository:
        pushed(repository)
        registry.requests.clear()
        yield registry, repository


def pushed(repository: str, attestations: bytes = b"") -> Pushed:
    with Client(read_reference(repository), push=True, limits=LIMITS) as client:
        return push(client, [shipment(attestations=attestations)], "v1")


def pulled(repository: str, folder: Path) -> bytes:
    """The bytes of the only bundle under the tag."""
    with Client(read_reference(f"{repository}:v1"), limits=LIMITS) as client:
        (found,) = pull(client, Wanted(), folder, checked)
    return found.path.read_bytes()


def known(registry: Registry, folder: Path, patch: pytest.MonkeyPatch, **config: object) -> None:
    """docker's configuration; the registry's password unless another is given."""
    (folder / "config.json").write_text(
        json.dumps(config or {"auths": {registry.host: {"auth": BASIC.removeprefix("Basic ")}}})
    )
    patch.setenv("DOCKER_CONFIG", str(folder))


def test_existing_objects_are_not_sent_again(stocked: tuple[Registry, str]) -> None:
    registry, repository = stocked
    assert pushed(repository).sent == 0
    assert not any(request.method in ("POST", "PATCH") for request in registry.requests)
    with Client(read_reference(repository), push=True) as client:
        again = push(client, [shipment(salts=(1, 2, 9))], "v2")
    assert 0 < again.sent < again.blobs  # both share their CUBINs


@pytest.mark.parametrize("where", [1, 1000, 4321])
def test_a_pull_resumes_where_it_broke(where: int, stocked: tuple[Registry, str], tmp_path: Path) -> None:
    registry, repository = stocked
    cut = set[str]()

    def tamper(request: Request, response: Response) -> Response:
        data = response.body
        fresh = request.method == "GET" and request.path.startswith(BLOBS) and request.path not in cut
        if fresh and isinstance(data, bytes) and len(data) > where:
            cut.add(request.path)
            return response.but(body=[data[:where]], headers={"Content-Length": str(len(data))})
        return response

    registry.tamper = tamper
    assert pulled(repository, tmp_path) == shipment().data
    ranges = [request.headers["range"] for request in registry.requests if "range" in request.headers]
    assert ranges == [f"bytes={where}-"] * len(cut) and cut


def test_a_pull_starts_anew_where_the_registry_knows_no_ranges(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    registry, repository = stocked
    seen = set[str]()

    def tamper(request: Request, response: Response) -> Response:
        if request.path.startswith(BLOBS) and request.path not in seen:
            seen.add(request.path)
            data = registry.blobs[request.path.removeprefix(BLOBS)]
            return Response(200, [data[: len(data) // 2]], {"Content-Length": str(len(data))})
        if "range" in request.headers:
            return Response(200, registry.blobs[request.path.removeprefix(BLOBS)])
        return response

    registry.tamper = tamper
    assert pulled(repository, tmp_path) == shipment().data


@pytest.mark.parametrize("kept", [0, 1500])
def test_an_upload_resumes_where_it_broke(kept: int) -> None:
    """The second chunk breaks; the registry has received none of it, or a part."""
    registry, data = Registry(), bytes(range(256)) * 20
    broken = list[str]()

    def tamper(request: Request, response: Response) -> Response:
        if request.method == "PATCH" and request.headers["content-range"].startswith("1000-") and not broken:
            name = request.path.rpartition("/")[2]
            registry.uploads[name] = data[: 1000 + min(kept, 500)]
            broken.append(name)
            return Response(503)
        return response

    registry.tamper = tamper
    with served(registry) as repository, Client(read_reference(repository), push=True, limits=LIMITS) as client:
        wanted = oci.describe("x", data)
        assert upload(client, wanted, data, chunk=1000)
        assert registry.blobs == {wanted.digest: data}
        assert not upload(client, wanted, data, chunk=1000)
    starts = [request.headers["content-range"].partition("-")[0] for request in registry.requests if request.method == "PATCH"]
    received = 1000 + min(kept, 500)
    assert starts == ["0", "1000", *(str(start) for start in range(received, len(data), 1000))]
    assert sum(request.method == "POST" for request in registry.requests) == 1


def test_an_upload_whose_response_was_lost_is_complete() -> None:
    registry, data = Registry(), b"blob"
    dropped = list[str]()

    def tamper(request: Request, response: Response) -> Response:
        if request.method == "PUT" and not dropped:
            dropped.append(request.path)
            return Response(500)
        return response

    registry.tamper = tamper
    with served(registry) as repository, Client(read_reference(repository), push=True, limits=LIMITS) as client:
        assert upload(client, oci.describe("x", data), data)
    assert sum(request.method == "POST" for request in registry.requests) == 1


def test_basic(stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, repository = stocked
    registry.tamper = lambda request, response: (
        response
        if request.headers.get("authorization") == BASIC
        else Response(401, b"", {"WWW-Authenticate": 'Basic realm="registry"'})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "absent"))
    with pytest.raises(RegistryError, match="requires a login") as caught:
        pulled(repository, tmp_path / "out")
    assert caught.value.code == "E0733" and caught.value.hint == f"`docker login {registry.host}`"
    known(registry, tmp_path, monkeypatch)
    assert pulled(repository, tmp_path / "out") == shipment().data
    assert "authorization" not in registry.requests[0].headers  # before it was requested


HELPER = """#!/bin/sh
read host
[ "$1" = get ] && echo "{\\"ServerURL\\": \\"$host\\", \\"Username\\": \\"<token>\\", \\"Secret\\": \\"identity-$host\\"}"
"""


@pytest.mark.parametrize("kind", ["password", "helper", "nobody"])
def test_bearer(kind: str, stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token service is asked with our identity and scope, whatever the challenge says."""
    registry, repository = stocked
    tokens = list[Request]()

    def tamper(request: Request, response: Response) -> Response:
        if request.path.startswith("/token"):
            tokens.append(request)
            return Response(200, b'{"token": "abc.def"}')
        challenge = f'Bearer realm="http://{registry.host}/token?a=b&scope=repository:other:push&service=x",service="kernels",scope="repository:other:*"'
        return (
            response
            if request.headers.get("authorization") == "Bearer abc.def"
            else Response(401, b"", {"WWW-Authenticate": challenge})
        )

    registry.tamper = tamper
    if kind == "helper":
        helper = tmp_path / "docker-credential-shelf"
        helper.write_text(HELPER)
        helper.chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        known(registry, tmp_path, monkeypatch, credHelpers={registry.host: "shelf"})
    elif kind == "password":
        known(registry, tmp_path, monkeypatch)
    else:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "absent"))
    assert pulled(repository, tmp_path / "out") == shipment().data
    (request,) = tokens
    if kind == "helper":
        assert (request.method, request.headers["content-type"]) == ("POST", "application/x-www-form-urlencoded")
        assert request.path == "/token?a=b"
    else:
        assert request.path == "/token?a=b&scope=repository%3Ateam%2Fkernels%3Apull&service=kernels"
        assert request.headers.get("authorization") == (BASIC if kind == "password" else None)


def test_no_password_is_sent_with_a_redirect(
    stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, repository = stocked
    known(registry, tmp_path, monkeypatch)
    elsewhere = Registry()
    elsewhere.blobs = registry.blobs
    with served(elsewhere):

        def tamper(request: Request, response: Response) -> Response:
            if request.headers.get("authorization") != BASIC:
                return Response(401, b"", {"WWW-Authenticate": "Basic realm=x"})
            elsewhere_url = f"http://{elsewhere.host}/v2/team/kernels{request.path}"
            return Response(307, b"", {"Location": elsewhere_url}) if request.path.startswith(BLOBS) else response

        registry.tamper = tamper
        assert pulled(repository, tmp_path / "out") == shipment().data
    assert elsewhere.requests and not any("authorization" in request.headers for request in elsewhere.requests)


@pytest.mark.parametrize("api", [True, False])
def test_attestations_refer_to_the_bundle_and_add_up(api: bool, tmp_path: Path) -> None:
    """By the registry's own referrers list or by the fallback tag; and in cosign's layout."""
    registry = Registry(api=api)
    with served(registry) as repository:
        subjects = {pushed(repository, sidecar(*names)).manifests for names in (("a", "b"), ("b", "c"))}
        assert pulled(repository, tmp_path) == shipment().data
    found = (tmp_path / "tiny-1b-sm_90a.bundle.intoto.jsonl").read_bytes()
    assert sorted(found.splitlines()) == sidecar("a", "b", "c").splitlines()
    ((subject,),) = subjects
    tag = referrers_tag(subject)
    assert (tag in registry.manifests) is not api
    layers = json.loads(registry.manifests[f"{tag}.att"][1])["layers"]
    assert [registry.blobs[layer["digest"]] for layer in layers] == sidecar("a", "b", "c").splitlines()
    assert {layer["mediaType"] for layer in layers} == {"application/vnd.dsse.envelope.v1+json"}
    assert layers[0]["annotations"] == {
        "dev.cosignproject.cosign/signature": "",
        "predicateType": "https://slsa.dev/provenance/v1",
    }


def test_what_killed_pulls_left_is_swept_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a pull by the command; and never the files that another pull, maybe on another machine, is about to name."""
    leftovers = [tmp_path / f".tmp-7-{'0' * 16}{end}" for end in ("", ".intoto.jsonl")]
    for path in leftovers:
        path.touch()

    def lives(process: int) -> bool:
        return False

    monkeypatch.setattr("tilec.untrusted.temporary_files._lives", lives)
    with served(Registry()) as repository:
        pushed(repository, sidecar("a"))
        assert run(["bundle", "pull", f"{repository}:v1", "-o", str(tmp_path), "--trust", "none"]) == 0
        names = set(os.listdir(tmp_path))
        assert names == {"tiny-1b-sm_90a.bundle", "tiny-1b-sm_90a.bundle.intoto.jsonl"}
        with Client(read_reference(f"{repository}:v1"), limits=LIMITS) as client:
            (found,) = pull(client, Wanted(), tmp_path / "out", lambda path, arch: sweep(path.parent))
    assert found.attested and set(os.listdir(tmp_path / "out")) == names


def test_what_cannot_be_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is reported before any request."""
    path = tmp_path / "one.bundle"
    path.write_bytes(shipment().data)
    nowhere = "oci://127.0.0.1:1/team/kernels"
    for arguments, message in (
        ([str(path), str(path), f"{nowhere}:v1"], "two bundles are for `tiny-1b` and `sm_90a`"),
        ([str(path), nowhere], "has no tag to push to"),
        ([str(path), f"{nowhere}@sha256:{'0' * 64}"], "has no tag to push to"),
        ([str(path), "v1"], "does not begin with `oci://`"),
        ([str(path), f"{nowhere}:v1"], "error[E0731]: `127.0.0.1:1` cannot be reached"),
    ):
        assert run(["bundle", "push", *arguments]) == 2
        assert message in capsys.readouterr().err
