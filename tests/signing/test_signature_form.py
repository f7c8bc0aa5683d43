"""The form of signatures: the published vector, one canonical spelling, bounds; and interoperability with other readers."""

from __future__ import annotations

import base64
import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.signer import SSlibKey

from tests.signing.scene import NAME, SIDECAR, SignedSetup, keys
from tilec.artifact import signing_keys
from tilec.artifact.bundle_format import canonical
from tilec.artifact.signature_format import (
    MAX_LINES,
    MAX_SIDECAR,
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    decode_sidecar,
    decode_statement,
    encode_sidecar,
    pae,
)
from tilec.artifact.signing_keys import KINDS, FileSigner, generate, read_private_key, read_public_key

# DSSE 1.0, protocol.md, "Test Vectors".
VECTOR_X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
VECTOR_Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
VECTOR_SIGNATURE = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="


def spki(key: Any) -> bytes:
    """A public key of any kind as PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_the_published_vector_is_accepted() -> None:
    message = pae("http://example.com/HelloWorld", b"hello world")
    assert message == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    key = read_public_key(spki(ec.EllipticCurvePublicNumbers(VECTOR_X, VECTOR_Y, ec.SECP256R1()).public_key()))
    raw = base64.b64decode(VECTOR_SIGNATURE)
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    signature = encode_dss_signature(r, min(s, signing_keys.P256_ORDER - s))
    assert key.accepts(signature, message)
    assert not key.accepts(signature, message + b"!")
    assert pae("é", "ü\n".encode()) == "DSSEv1 2 é 3 ü\n".encode()


def test_securesystemslib_verifies_ours(signed_setup: SignedSetup) -> None:
    known: list[Any] = []
    for signer, kind, scheme in zip(
        signed_setup.signers, ("ed25519", "ecdsa"), ("ed25519", "ecdsa-sha2-nistp256"), strict=True
    ):  # fmt: skip
        key = serialization.load_pem_public_key(signer.public_key.pem())
        if kind == "ed25519":
            raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)  # pyright: ignore
            public = raw.hex()
        else:
            public = signer.public_key.pem().decode()
        known.append(SSlibKey(signer.public_key.id, kind, scheme, {"public": public}))
    for line in signed_setup.lines():
        assert len(OtherEnvelope.from_dict(copy.deepcopy(line)).verify(known, 2)) == 2
        line["payload"] = base64.b64encode(base64.b64decode(line["payload"]) + b" ").decode()
        with pytest.raises(Exception, match="do not match threshold"):
            OtherEnvelope.from_dict(line).verify(known, 2)


@pytest.mark.parametrize("number", [0, 1])
def test_openssl_verifies_ours(signed_setup: SignedSetup, number: int) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = signed_setup.folder
    envelope = signed_setup.envelopes()[0]
    (folder / "message").write_bytes(envelope.signed_bytes())
    (folder / "signature").write_bytes(envelope.signatures[number].value)
    command = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", str(folder / ("first.pub", "second.pub")[number])]
    command += ["-sigfile", str(folder / "signature"), "-rawin", "-in", str(folder / "message")]
    command += [] if number == 0 else ["-digest", "sha256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in done.stdout + done.stderr
    (folder / "message").write_bytes(envelope.signed_bytes() + b"!")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_a_key_of_openssl_signs(signed_setup: SignedSetup, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for arguments in (["ed25519"], ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]):
        path = tmp_path / "key"
        subprocess.run(["openssl", "genpkey", "-algorithm", *arguments, "-out", str(path)], check=True, capture_output=True)
        signer = read_private_key(path.read_bytes())
        assert signer.public_key.accepts(signer.sign(b"x"), b"x")
        public = subprocess.run(["openssl", "pkey", "-in", str(path), "-pubout"], check=True, capture_output=True).stdout
        assert read_public_key(public).id == signer.public_key.id


@pytest.mark.parametrize("kind", KINDS)
def test_keys_go_through_their_files(kind: str) -> None:
    signer = generate(kind)
    assert read_private_key(signer.pem()).public_key.id == signer.public_key.id
    assert read_private_key(signer.pem(b"secret"), b"secret").public_key.id == signer.public_key.id
    assert b"ENCRYPTED" in signer.pem(b"secret")
    with pytest.raises(signing_keys.PassphraseNeeded):
        read_private_key(signer.pem(b"secret"))
    with pytest.raises(ValueError, match="cannot be decrypted"):
        read_private_key(signer.pem(b"secret"), b"other")
    assert signer.public_key.kind == kind
    for other in keys():
        assert not other.public_key.accepts(signer.sign(b"x"), b"x")


def test_keys_of_other_kinds_are_refused() -> None:
    private: tuple[Any, ...] = (ec.generate_private_key(ec.SECP384R1()), ed448.Ed448PrivateKey.generate())
    private += (rsa.generate_private_key(65537, 1024),)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for key in private:
        with pytest.raises(ValueError, match="is not a public key that tilec knows"):
            read_public_key(spki(key.public_key()))
        with pytest.raises(ValueError, match="of another kind"):
            read_private_key(key.private_bytes(*plain))
    for text in (b"", b"x" * 100, generate("ed25519").pem(), b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(ValueError, match="public key"):
            read_public_key(text)


def test_a_file_of_two_keys_is_none() -> None:
    """Otherwise only the first would be trusted, silently."""
    one, other = (generate(kind).public_key.pem() for kind in KINDS)
    for text in (one + other, one + one, one + b"\n# and\n" + other):
        with pytest.raises(ValueError, match="more than one key"):
            read_public_key(text)
        with pytest.raises(ValueError, match="private key"):
            read_private_key(text if b"PRIVATE" not in text else b"")


def test_one_sidecar_has_one_spelling(signed_setup: SignedSetup) -> None:
    data = signed_setup.sound[SIDECAR]
    envelopes = decode_sidecar(data)
    assert encode_sidecar(envelopes) == data
    assert {decode_statement(one.payload).predicate_type for one in envelopes} == {
        "https://slsa.dev/provenance/v1",
        "https://cyclonedx.org/bom",
    }
    signed_setup.sidecar.write_bytes(b"".join(reversed(data.splitlines(keepends=True))))
    signed_setup.use()  # the order of lines is irrelevant


def test_what_strangers_add_changes_nothing(signed_setup: SignedSetup) -> None:
    """As in-toto requires of readers: other types, keys, subjects and predicates are ignored."""
    stranger = signed_setup.strangers[0]

    def envelope_of(signer: FileSigner, payload: bytes, kind: str = PAYLOAD_TYPE) -> Envelope:
        return Envelope(payload, kind, (Signature(signer.public_key.id, signer.sign(pae(kind, payload))),))

    statement = json.loads(signed_setup.payloads["sbom"])
    test_result = canonical(dict(statement, predicateType="https://in-toto.io/attestation/test-result/v0.1"))
    elsewhere = canonical(dict(statement, subject=[{"name": NAME, "digest": {"sha256": "0" * 64}}]))
    sound = decode_sidecar(signed_setup.sound[SIDECAR])
    extra = [
        envelope_of(stranger, b"not even JSON"),
        envelope_of(stranger, b"x", "text/plain"),
        envelope_of(signed_setup.signers[0], test_result),
    ]
    extra += [envelope_of(signed_setup.signers[0], elsewhere), envelope_of(signed_setup.signers[0], b"x", "text/plain")]
    signed_setup.write_envelopes([*extra, *sound])
    signed_setup.use()


def test_bounds_of_a_sidecar() -> None:
    one = Envelope(b"x", "text/plain", (Signature("0" * 64, b"y"),))
    many = [Envelope(str(n).encode(), "text/plain", one.signatures) for n in range(MAX_LINES + 1)]
    assert len(decode_sidecar(encode_sidecar(many[:-1]))) == MAX_LINES
    with pytest.raises(ValueError, match="more than a sidecar may have"):
        encode_sidecar(many)
    for data, message in (
        (b"\n" * (MAX_LINES + 1), "more than 64 lines"),
        (b"x" * (MAX_SIDECAR + 1), "more than the"),
        (b"", "its last line"),
        (encode_sidecar([one])[:-1], "its last line"),
        (encode_sidecar([one]) * 2, "are the same"),
        (b"[]\n", "line 1: it is not an object"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_sidecar(data)
