"""Keys that sign bundles: takes PEM files and bytes, creates and verifies signatures.

Two kinds: Ed25519 (RFC 8032), and ECDSA over P-256 with SHA-256 (FIPS 186-5). A private key is a PEM file with PKCS#8 (RFC
5958), encrypted if it has a passphrase; a public key is one with its SubjectPublicKeyInfo (RFC 5280), and its id is the hex
sha256 of that as DER. The key determines the kind of a signature, never the signature itself, so one kind cannot pass for the
other. For each message and key there is one accepted encoding: Ed25519 has only one; for ECDSA only strict DER with s in the
lower half of the group's order is accepted, because anyone can turn (r, s) into (r, -s).

`Signer` is the interface; `FileSigner` uses the key of a PEM file. A token (PKCS#11) or a service can implement it too.

Needs the package `cryptography` (`tilec[signing]`), so it is imported only if a signature or a policy is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

MAX_PEM: Final = 16 << 10
"""Maximum bytes of a key's file; a key of these kinds has under 500."""
KINDS: Final = ("ed25519", "ecdsa-p256")
P256_ORDER: Final = 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551
"""Order of the group of P-256 (SP 800-186, 3.2.1.3)."""
_BEGIN: Final = b"-----BEGIN "
_PUBLIC_LABEL: Final = _BEGIN + b"PUBLIC KEY-----"

_Public = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey
_Private = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


class PassphraseNeeded(Exception):
    """A private key is encrypted and no passphrase was given."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key; `id` is the hex sha256 of its SubjectPublicKeyInfo, `kind` one of `KINDS`."""

    id: str
    kind: str
    _key: _Public

    def accepts(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is this key's signature of `message`, in its canonical encoding."""
        try:
            if isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, message)
            elif _normal(signature) != signature:
                return False
            else:
                self._key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    def pem(self) -> bytes:
        """The key in PEM."""
        return self._key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Signer(Protocol):
    """Signs bytes, wherever its private key is stored."""

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies the signatures."""
        ...

    def sign(self, message: bytes) -> bytes:
        """A signature over `message` that `public_key` accepts."""
        ...


class FileSigner:
    """A signer whose private key was read from a PEM file."""

    def __init__(self, key: _Private) -> None:
        self._key = key
        self._public = _public(key.public_key())

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies the signatures."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """A signature over `message`; deterministic for Ed25519."""
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return _normal(self._key.sign(message, ec.ECDSA(hashes.SHA256())))

    def pem(self, passphrase: bytes | None = None) -> bytes:
        """The private key in PEM, encrypted if there is a passphrase."""
        encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def generate(kind: str) -> FileSigner:
    """A new key of one of `KINDS`, from the system's random number generator."""
    if kind == "ed25519":
        return FileSigner(ed25519.Ed25519PrivateKey.generate())
    return FileSigner(ec.generate_private_key(ec.SECP256R1()))


def read_public_key(pem: bytes) -> PublicKey:
    """The key of a PEM text; ValueError, whose text ends a sentence, if it is not a public key of a known kind."""
    if len(pem) > MAX_PEM or not pem.lstrip().startswith(_PUBLIC_LABEL):
        raise ValueError("is not a public key in PEM (`-----BEGIN PUBLIC KEY-----`)")
    if pem.count(_BEGIN) > 1:  # the reader silently uses only the first
        raise ValueError("has more than one key; name each by a file of its own")
    try:
        return _public(serialization.load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("is not a public key that tilec knows: Ed25519, or ECDSA over P-256") from None


def read_private_key(pem: bytes, passphrase: bytes | None = None) -> FileSigner:
    """The signer of a PEM text; PassphraseNeeded if it is encrypted and none is given; ValueError, whose text ends a sentence,
    if it is not a private key of a known kind or the passphrase is wrong."""
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem
    if encrypted and passphrase is None:
        raise PassphraseNeeded
    try:
        key = serialization.load_pem_private_key(pem, passphrase if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = (
            "cannot be decrypted: the passphrase is wrong, or the file damaged" if encrypted else "is not a private key in PEM"
        )
        raise ValueError(problem) from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return FileSigner(key)
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return FileSigner(key)
    raise ValueError("is a private key of another kind than Ed25519 and ECDSA over P-256")


def _public(key: object) -> PublicKey:
    if isinstance(key, ed25519.Ed25519PublicKey):
        kind = "ed25519"
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        kind = "ecdsa-p256"
    else:
        raise ValueError
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(hashlib.sha256(der).hexdigest(), kind, key)


def _normal(signature: bytes) -> bytes:
    """The canonical encoding of an ECDSA signature over P-256; ValueError if it is invalid."""
    r, s = decode_dss_signature(signature)
    if not (0 < r < P256_ORDER and 0 < s < P256_ORDER):
        raise ValueError("no signature over P-256")
    return encode_dss_signature(r, min(s, P256_ORDER - s))
