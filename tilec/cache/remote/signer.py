"""Signatures of entries on a remote: by a secret of the team, or by a private key whose signatures others can verify.

The contents of the file `TILEC_REMOTE_KEY_FILE` select the scheme:

    32 to 4096 bytes of a secret       HMAC-SHA256 (RFC 2104): whoever can verify can also sign
    an Ed25519 private key, PEM        signs and verifies (RFC 8032): for the builders of a team, such as CI
    Ed25519 public keys, PEM           verifies signatures of these keys, writes nothing: for everybody else

Without a file nothing is signed, and every complete entry is accepted (`tilec.cache.remote` says who is then trusted). With
one, an entry without a valid signature is not used.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import Any, Final, Protocol

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.untrusted.regular_file import USED_BY_OTHERS, WRITTEN_BY_OTHERS, read_regular

KEY_FILE: Final = "TILEC_REMOTE_KEY_FILE"
SHORTEST, LONGEST = 32, 4096  # bytes of a secret
LARGEST_FILE: Final = 1 << 16
PEM: Final = b"-----BEGIN"
_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)
_CONTEXT: Final = b"tilec remote entry\0"
"""Prefix of all signed bytes: a signature that the same key made for another purpose is not valid for an entry."""


class Signer(Protocol):
    """Signs heads of entries and verifies signatures. `writes` is False if it can only verify."""

    writes: bool
    kind: str

    def sign(self, head: bytes) -> str:
        """The signature: the name of its kind, and hex digits."""
        ...

    def fault(self, signature: str, head: bytes) -> str:
        """Why `signature` is not a valid signature of `head`, as the end of a sentence; empty if it is valid."""
        ...


class Unsigned:
    """No key: everything is accepted."""

    writes = True
    kind = "none"

    def sign(self, head: bytes) -> str:
        """The word `none` in place of a signature."""
        return "none"

    def fault(self, signature: str, head: bytes) -> str:
        """Always empty: any signature is accepted."""
        return ""


class Secret:
    """HMAC-SHA256 with a secret of the team."""

    writes = True
    kind = "hmac-sha256"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, head: bytes) -> str:
        """The HMAC."""
        return f"{self.kind} {hmac.digest(self._secret, _CONTEXT + head, hashlib.sha256).hex()}"

    def fault(self, signature: str, head: bytes) -> str:
        """Constant-time comparison with the expected HMAC."""
        if hmac.compare_digest(signature.encode(), self.sign(head).encode()):
            return ""
        return "it is not signed" if signature == "none" else "it is not signed by the team's secret"


class KeyPair:
    """Ed25519: a private key or None, and the trusted public keys, as PEM."""

    kind = "ed25519"

    def __init__(self, private: bytes | None, public: tuple[bytes, ...]) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

        self._private: Any = None if private is None else serialization.load_pem_private_key(private, None)
        known: list[Any] = [serialization.load_pem_public_key(one) for one in public]
        if self._private is not None:
            if not isinstance(self._private, Ed25519PrivateKey):
                raise ValueError("is a private key of another kind than Ed25519")
            known.append(self._private.public_key())
        if not all(isinstance(one, Ed25519PublicKey) for one in known):
            raise ValueError("holds a public key of another kind than Ed25519")
        self._known = known
        self.writes = self._private is not None

    def sign(self, head: bytes) -> str:
        """The signature; AssertionError without a private key."""
        assert self._private is not None
        return f"{self.kind} {self._private.sign(_CONTEXT + head).hex()}"

    def fault(self, signature: str, head: bytes) -> str:
        """Tries every trusted public key."""
        from cryptography.exceptions import InvalidSignature

        kind, _, digits = signature.partition(" ")
        if kind != self.kind:
            return "it is not signed" if kind == "none" else f"it is signed by {kind[:20]}, not by {self.kind}"
        if re.fullmatch(r"[0-9a-f]{128}", digits, re.ASCII):
            for key in self._known:
                try:
                    key.verify(bytes.fromhex(digits), _CONTEXT + head)
                except InvalidSignature:
                    continue
                return ""
        return "it is not signed by a trusted key"


def read_key() -> bytes:
    """The bytes of the file that the environment names; empty if it names none.

    CompileError E0752 if it cannot be used, for example because others can write to it or read a secret.
    """
    given = os.environ.get(KEY_FILE)
    if not given:
        return b""
    path = Path(given).absolute()
    try:
        data = read_regular(path, LARGEST_FILE, forbidden_mode=WRITTEN_BY_OTHERS).strip()
        if not _only_public(data):
            data = read_regular(path, LARGEST_FILE, forbidden_mode=USED_BY_OTHERS).strip()
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise refused(str(error)) from None
    if PEM in data and not data.startswith(PEM):
        raise refused("has other text before its PEM block; a PEM file begins with its first block")
    if not SHORTEST <= len(data) <= (LARGEST_FILE if data.startswith(PEM) else LONGEST):
        raise refused(f"holds {len(data)} bytes; a secret has {SHORTEST} to {LONGEST}")
    return data


def signer_of(key: bytes) -> Signer:
    """The signer for the result of `read_key`. CompileError E0752 if it is not a key."""
    if not key:
        return Unsigned()
    if not key.startswith(PEM):
        return Secret(key)
    public = tuple(_PUBLIC.findall(key))
    private = None if _only_public(key) else _PUBLIC.sub(b"", key)
    try:
        return KeyPair(private, public)
    except ImportError:
        raise refused("needs the package `cryptography`: `pip install 'tilec[remote]'`") from None
    except Exception as error:  # the library raises many kinds for a malformed key
        raise refused(f"is not an Ed25519 key: {error}"[:200]) from None


def _only_public(data: bytes) -> bool:
    """Whether `data` is nothing but public keys, which others may read."""
    return bool(_PUBLIC.search(data)) and not _PUBLIC.sub(b"", data).strip()


def refused(reason: str) -> CompileError:
    """E0752."""
    hint = "`tilec explain E0752` says what it may hold"
    return CompileError(Diagnostic("E0752", f"the key of the remote cache (`{KEY_FILE}`) {reason}", hint=hint))
