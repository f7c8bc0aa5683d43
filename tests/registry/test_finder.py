"""Where the engine searches for a bundle, in which order, and what it skips."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle import samples
from tests.registry.server import Registry, served
from tests.registry.shipments import shipment
from tests.signing import scene
from tilec.artifact.signature_format import encode_sidecar, sidecar_path
from tilec.artifact.signing_keys import generate
from tilec.cli.commands import run
from tilec.runtime import BundleError, open_bundle
from tilec.ship.bundle.wheel import make_wheel
from tilec.ship.finder import bundles_folder, find_bundle, find_kernel
from tilec.ship.registry.client import Client
from tilec.ship.registry.push import push
from tilec.ship.registry.reference import read_reference

NUMBERS = {"hidden_size": 128, "tied": True, "eps": 1e-6, "dtype": "bf16", "layers": 2}
NAME = "tiny-1b-sm_90a.bundle"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Unpacks the wheel of a bundle on Python's package path, as an installer does; returns the bundle's path."""

    def call(arch: str = "sm_90a", model: str = "tiny-1b") -> Path:
        description, blobs = samples.parts(arch)
        path = tmp_path / "made.bundle"
        path.write_bytes(samples.encode(description | {"model": model}, blobs))
        with open_bundle(path) as bundle:
            wheel = make_wheel(bundle, path.read_bytes(), b"{}\n", "1.0", "0")
        (tmp_path / wheel.name).write_bytes(wheel.data)
        zipfile.ZipFile(tmp_path / wheel.name).extractall(tmp_path / "packages")
        return tmp_path / "packages" / wheel.name.partition("-")[0] / f"{model}-{arch}.bundle"

    (tmp_path / "packages").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    return call


def keep(data: bytes, name: str = NAME) -> Path:
    """Writes a file to the folder of pulled bundles."""
    bundles_folder().mkdir(parents=True, mode=0o700, exist_ok=True)
    path = bundles_folder() / name
    path.write_bytes(data)
    return path


def path_of(numbers: dict[str, object], arch: str, trust: str | None = None) -> Path:
    """The path of the bundle that is found."""
    with find_bundle(numbers, arch, trust) as bundle:
        return bundle.path


def kernel_path(kernel: str, constants: dict[str, Any], arch: str) -> Path:
    """The path of the bundle that is found for a kernel."""
    with find_kernel(kernel, constants, arch) as bundle:
        return bundle.path


def refusal(arch: str = "sm_90a") -> BundleError:
    with pytest.raises(BundleError) as caught:
        find_bundle(NUMBERS, arch)
    return caught.value


def test_nothing_is_found_and_no_registry_is_contacted() -> None:
    found = refusal()
    assert found.code == "E0735" and str(bundles_folder()) in found.message


def test_a_package_comes_before_what_was_pulled(install: Callable[..., Path]) -> None:
    pulled = keep(samples.bundle())
    assert path_of(NUMBERS, "sm_90a") == pulled
    installed = install()
    assert path_of(NUMBERS, "sm_90a") == installed
    assert "tilec_kernels_tiny_1b_sm_90a" not in sys.modules  # none of its code was run
    install(arch="sm_100a")
    assert path_of(NUMBERS, "sm_90a") == installed
    assert path_of(NUMBERS, "sm_100a").name == "tiny-1b-sm_100a.bundle"
    assert refusal("sm_120a").code == "E0735"


def test_a_package_with_a_malformed_list_hides_no_other(install: Callable[..., Path], tmp_path: Path) -> None:
    installed = install()
    broken = tmp_path / "packages" / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[tilec.kernels]\nno value\n")
    assert path_of(NUMBERS, "sm_90a") == installed


def test_two_packages_are_none(install: Callable[..., Path]) -> None:
    install()
    install(model="tiny-1c")
    found = refusal()
    assert found.code == "E0735" and "two packages" in found.message


@pytest.mark.parametrize("numbers", [{}, NUMBERS | {"hidden_size": 256}, {"hidden_size": 128}])
def test_another_model_is_not_used(numbers: dict[str, object]) -> None:
    keep(samples.bundle())
    with pytest.raises(BundleError, match="no bundle for this model"):
        find_bundle(numbers, "sm_90a")


def test_what_cannot_be_used_is_named() -> None:
    path = keep(b"damaged")
    assert f"`{path}` is not a bundle of format 3" in refusal().message
    keep(samples.bundle()[:300])
    assert "is damaged" in refusal().message
    path.unlink()
    path.symlink_to(path.with_name("absent"))
    assert "cannot be read" in refusal().message
    path.unlink()
    os.mkfifo(path)
    assert "is not a file" in refusal().message
    other = keep(samples.bundle(), "tiny-2b-sm_90a.bundle")
    assert path_of(NUMBERS, "sm_90a") == other


def test_a_folder_of_everybody_is_not_believed() -> None:
    path = keep(samples.bundle())
    path.parent.chmod(0o777)
    found = refusal()
    assert "is not private" in found.message and str(path.parent) in found.message


def test_a_registry_is_contacted_if_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    with served(registry) as find:
        with Client(read_reference(find), push=True) as client:
            push(client, [shipment("sm_90a"), shipment("sm_100a", (5,))], "v1")
        monkeypatch.setenv("TILEC_REGISTRY", f"{find}:v1")
        found = path_of(NUMBERS, "sm_90a")
        assert (found, found.read_bytes()) == (bundles_folder() / NAME, samples.bundle())
        request = len(registry.requests)
        assert path_of(NUMBERS, "sm_90a") == found and len(registry.requests) == request  # it is there now
        with pytest.raises(BundleError) as caught:
            find_bundle(NUMBERS | {"hidden_size": 256}, "sm_90a")
        assert caught.value.code == "E0734"
        with pytest.raises(BundleError) as caught:
            find_bundle(NUMBERS, "sm_100a", trust=str(bundles_folder() / "absent"))
        assert caught.value.code == "E0715" and not (bundles_folder() / "tiny-1b-sm_100a.bundle").exists()
    monkeypatch.setenv("TILEC_REGISTRY", "oci://[1:2]/x:y")
    assert "names no host" in refusal("sm_100a").message
    monkeypatch.setenv("TILEC_REGISTRY", "somewhere")
    assert "does not begin with `oci://`" in refusal("sm_100a").message


@pytest.mark.campaign
def test_a_wheel_is_as_wheels_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Members, digests and names; the same bytes at any time; pip installs it."""
    path = tmp_path / NAME
    path.write_bytes(samples.bundle())
    (tmp_path / f"{NAME}.intoto.jsonl").write_bytes(b"{}\n")
    wheel, contents = tmp_path / "tilec_kernels_tiny_1b_sm_90a-1.2.post3-py3-none-any.whl", list[bytes]()
    for epoch in ("0", "2000000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        assert run(["bundle", "wheel", str(path), "--version", "1.2.post3", "-o", str(tmp_path)]) == 0
        contents.append(wheel.read_bytes())
        sha256 = hashlib.sha256(contents[-1]).hexdigest()
        assert capsys.readouterr() == (f"{wheel}  {len(contents[-1])} bytes  sha256 {sha256}\n", "")
    assert contents[0] == contents[1]
    archive = zipfile.ZipFile(wheel)
    assert archive.read(f"tilec_kernels_tiny_1b_sm_90a/{NAME}") == samples.bundle()
    assert archive.read(f"tilec_kernels_tiny_1b_sm_90a/{NAME}.intoto.jsonl") == b"{}\n"
    info = "tilec_kernels_tiny_1b_sm_90a-1.2.post3.dist-info"
    assert archive.namelist()[-1] == f"{info}/RECORD"
    assert len(archive.read(f"{info}/RECORD").splitlines()) == len(archive.namelist())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        str(tmp_path / "site"),
    ]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tilec_kernels_tiny_1b_sm_90a" / NAME).read_bytes() == samples.bundle()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert path_of(NUMBERS, "sm_90a") == tmp_path / "site" / "tilec_kernels_tiny_1b_sm_90a" / NAME


@pytest.mark.parametrize("version", ["", "v1", "1.0-1", "1!1.0", "01.0", "1.0+", "1.0/..", "1.0\n"])
def test_what_is_no_version(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_bytes(samples.bundle())
    status = run(["bundle", "wheel", str(tmp_path / NAME), "--version", version or " ", "-o", str(tmp_path)])
    assert status == 2 and "is not a normalised version" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_a_kernel_is_found_by_its_constants(install: Callable[..., Path]) -> None:
    """In the bundle of any model, an installed one before a pulled one; two bundles with the same code are equivalent."""
    constants = {"E": "bf16", "N": 1, "F": 0.5, "G": True}
    pulled = keep(samples.bundle())
    keep(b"nothing", "other-sm_90a.bundle")
    assert kernel_path("scale", constants, "sm_90a") == pulled
    installed = install(model="other")
    install(model="tiny-1b")
    assert kernel_path("scale", constants, "sm_90a") == installed
    for kernel, wanted, arch in (
        ("scale", constants | {"N": 9}, "sm_90a"), ("scales", constants, "sm_90a"), ("scale", constants, "sm_100a")
    ):  # fmt: skip
        with pytest.raises(BundleError, match="E0735") as caught:
            find_kernel(kernel, wanted, arch)
        assert f"`{kernel}`, E = bf16, N = {wanted['N']}" in str(caught.value)


def test_two_bundles_with_other_code_for_a_kernel_are_none(install: Callable[..., Path]) -> None:
    keep(samples.bundle())
    other = keep(samples.bundle(salts=(5,)), "other-sm_90a.bundle")
    with pytest.raises(BundleError, match="E0735") as caught:
        find_kernel("scale", {"E": "bf16", "N": 0, "F": 0.5, "G": True}, "sm_90a")
    assert str(other) in str(caught.value) and "different code" in str(caught.value)


def test_what_a_policy_refuses_hides_nothing(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It hides neither a later bundle of the model, nor one with a kernel, nor a conflict between two with different code."""
    signer, policy, constants = generate("ed25519"), tmp_path / "trust.toml", {"E": "bf16", "N": 0, "F": 0.5, "G": True}
    (tmp_path / "key.pub").write_bytes(signer.public_key.pem())
    policy.write_text('[trust]\nformat = 2\nkeys = ["key.pub"]\n')
    unsigned = [install(), keep(samples.bundle(salts=(5,)), "a-sm_90a.bundle")]
    sidecar_path(unsigned[0]).unlink()
    signed = keep(samples.bundle(salts=(6,)))
    monkeypatch.setenv("TILEC_TRUST", str(policy))
    with pytest.raises(BundleError) as caught:
        find_kernel("scale", constants, "sm_90a")
    for found in (refusal(), caught.value):
        assert found.code == "E0714" and f"`{unsigned[0]}` is not signed" in found.message
        assert found.message.endswith("; 2 other bundles are refused too") and not caplog.messages
    payloads = scene.payloads_of(signed, signed.read_bytes(), 1).values()
    sidecar_path(signed).write_bytes(encode_sidecar(scene.signed(payloads, [signer])))
    for find in (lambda: path_of(NUMBERS, "sm_90a"), lambda: kernel_path("scale", constants, "sm_90a")):
        caplog.clear()
        assert find() == signed
        assert len(caplog.messages) == 2 and all(f"`{path}` is not signed" in caplog.text for path in unsigned)


def test_a_damaged_bundle_hides_no_intact_one(caplog: pytest.LogCaptureFixture) -> None:
    damaged = keep(samples.bundle()[:-1] + b"x", "a-sm_90a.bundle")
    assert refusal().code == "E0705"
    intact = keep(samples.bundle())
    assert path_of(NUMBERS, "sm_90a") == intact
    assert f"`{damaged}` is damaged" in caplog.text


def test_a_bundle_states_every_number_that_decides() -> None:
    keep(samples.bundle())
    find_bundle(NUMBERS, "sm_90a", deciding=("hidden_size", "tied")).close()
    with pytest.raises(BundleError, match="no bundle for this model"):
        find_bundle(NUMBERS, "sm_90a", deciding=("hidden_size", "layers"))
