"""`tilec bundle keygen|sign|attest|verify|sbom` from their users' view."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.signing.scene import NAME, SIDECAR, SignedSetup, bundle_bytes
from tilec.cli import commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a project, with a bundle and a key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_bytes(bundle_bytes())
    assert commands.run(["bundle", "keygen", "key"]) == 0
    return tmp_path


def test_from_a_key_to_a_verified_bundle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / NAME).read_bytes()
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert commands.run(["bundle", "keygen", "second", "--kind", "ecdsa-p256", "--json"]) == 0
    out = capsys.readouterr().out
    second = json.loads(out[out.index("{") :])["keyid"]
    for key in ("key", "second"):
        assert commands.run(["bundle", "sign", NAME, "--key", key, "--release", "3", "--builder", "urn:example:ci"]) == 0
    assert commands.run(["bundle", "verify", NAME, "--key", "key.pub", "--key", "second.pub"]) == 0
    out = capsys.readouterr().out
    assert f"{NAME}: intact, tiny-1b for sm_90a" in out and f"{second} (second.pub)" in out
    assert "release 3, built by urn:example:ci" in out
    (folder / "trust.toml").write_text('[trust]\nformat = 2\nkeys = ["second.pub"]\nminimum = 3\n')
    assert commands.run(["bundle", "verify", NAME, "--trust", "trust.toml", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["bundles"][0]
    assert row["signed"] == {"keys": [{"keyid": second, "name": "second.pub"}], "release": 3, "builder": "urn:example:ci"}
    assert commands.run(["bundle", "list", NAME, "--trust", "trust.toml"]) == 0
    assert (folder / NAME).read_bytes() == before


def test_refusals_of_the_commands(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEC_KEY_PASSPHRASE", raising=False)
    monkeypatch.setattr("sys.stdin", None)
    (folder / "open").write_bytes((folder / "key").read_bytes())
    (folder / "open").chmod(0o640)
    (folder / "bad.toml").write_text("[trust]\nformat = 2\n")
    (folder / "broken.bundle").write_bytes(bundle_bytes()[:-1])
    private = (folder / "key").read_bytes()
    for arguments, status, message in (
        (["keygen", "key"], 2, "never overwritten"),
        (["keygen", "absent/key"], 2, "error[E0702]"),
        (["keygen", "more", "--encrypt"], 2, "needs a passphrase"),
        (["keygen", "more", "--kind", "rsa"], 2, "rsa"),
        (["verify", NAME, "--key", "key.pub"], 1, "is not signed"),
        (["verify", NAME, "--key", "key"], 2, "error[E0715]"),
        (["verify", NAME, "--trust", "bad.toml"], 2, "error[E0715]"),
        (["verify", NAME, "--trust", "none", "--key", "key.pub"], 2, "cannot be combined"),
        (["list", NAME, "--trust", "absent.toml"], 2, "error[E0715]"),
        (["sign", NAME, "--key", "open"], 2, "may be read or written by others"),
        (["sign", NAME, "--key", "key.pub"], 2, "error[E0716]"),
        (["sign", NAME, "--key", "absent"], 2, "error[E0716]"),
        (["sign", NAME, "--key", "key", "--builder", "no builder"], 2, "is not a URI"),
        (["sign", NAME, "broken.bundle", "--key", "key"], 1, "error[E0705]"),
        (["sign", NAME, "--key", "key", "--release", "-1"], 2, "-1"),
        (["sbom", "broken.bundle"], 1, "error[E0705]"),
    ):
        assert commands.run(["bundle", *arguments]) == status, arguments
        err = capsys.readouterr().err
        assert message in err and "Traceback" not in err, arguments
    assert (folder / "key").read_bytes() == private
    assert not (folder / SIDECAR).exists() and not (folder / "more").exists() and not (folder / "more.pub").exists()
    (folder / SIDECAR).write_bytes(b"damaged")
    assert commands.run(["bundle", "sign", NAME, "--key", "key"]) == 1
    assert "move it away" in capsys.readouterr().err
    assert (folder / SIDECAR).read_bytes() == b"damaged"


def test_a_key_under_a_passphrase(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_KEY_PASSPHRASE", "open sesame")
    assert commands.run(["bundle", "keygen", "locked", "--encrypt"]) == 0
    assert b"ENCRYPTED" in (folder / "locked").read_bytes()
    assert commands.run(["bundle", "sign", NAME, "--key", "locked"]) == 0
    assert commands.run(["bundle", "verify", NAME, "--key", "locked.pub"]) == 0
    monkeypatch.setenv("TILEC_KEY_PASSPHRASE", "other")
    assert commands.run(["bundle", "sign", NAME, "--key", "locked"]) == 2
    assert "the passphrase is wrong" in capsys.readouterr().err


def test_what_would_be_signed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert commands.run(["bundle", "attest", NAME, "--release", "5"]) == 0
    rows = json.loads(capsys.readouterr().out)["unsigned"]
    assert [row["statement"]["predicateType"] for row in rows] == [
        "https://slsa.dev/provenance/v1",
        "https://cyclonedx.org/bom",
    ]
    assert rows[0]["statement"]["predicate"]["buildDefinition"]["externalParameters"]["release"] == 5
    assert commands.run(["bundle", "attest", NAME, "--release", "5", "-o", "out"]) == 0
    capsys.readouterr()
    payload = (folder / "out" / f"{NAME}.provenance.json").read_bytes()
    assert json.loads(payload) == rows[0]["statement"]
    assert (folder / "out" / f"{NAME}.provenance.pae").read_bytes().endswith(payload)
    assert commands.run(["bundle", "sbom", NAME]) == 0
    assert json.loads(capsys.readouterr().out) == rows[1]["statement"]["predicate"]
    assert not (folder / SIDECAR).exists()


def test_a_policy_of_the_environment_applies_to_every_command(
    signed_setup: SignedSetup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_TRUST", str(signed_setup.policy))
    path = str(signed_setup.bundle)
    kernel = "scale-E=bf16-N=1"
    for _ in range(2):
        status = 0 if signed_setup.sidecar.exists() else 1
        for arguments in (["verify", path], ["list", path], ["show", path, kernel], ["diff", path, path], ["sbom", path]):
            assert commands.run(["bundle", *arguments]) == status, arguments
            assert ("error[E0714]" in capsys.readouterr().err) == bool(status)
            assert commands.run(["bundle", *arguments, "--trust", "none"]) == 0
        capsys.readouterr()
        signed_setup.sidecar.unlink(missing_ok=True)
