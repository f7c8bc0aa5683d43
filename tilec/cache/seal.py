"""The seal of a record: it binds the record to its key and, with a secret, to the user.

Every record carries the HMAC-SHA256 (RFC 2104) of its kind, its name and its bytes. Without a secret the HMAC key is empty. It
then detects damage and records stored under another name, but no forgery, so such a store must be the user's own (`location`).
With a secret, from the file `TILEC_CACHE_KEY_FILE`, nobody else can write a record that is accepted, so the store can be shared
with untrusted people. Each secret has folders of its own: two users of one store neither read nor overwrite each other's
records.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.untrusted.output import Output
from tilec.untrusted.regular_file import USED_BY_OTHERS, read_regular

KEY_FILE: Final = "TILEC_CACHE_KEY_FILE"
SHORTEST, LONGEST = 32, 4096  # bytes of a key
LARGEST_FILE: Final = LONGEST + 64


class Sealer:
    """Seals under one secret (empty: none). `suffix` is appended to the names of this secret's folders."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret
        self.keyed = bool(secret)
        self.suffix = f"-{self.seal('id', '', b'')[:16]}" if secret else ""

    def seal(self, kind: str, name: str, data: bytes) -> str:
        """64 hex digits over the kind, the name and the bytes, each with its length."""
        parts = (kind.encode(), name.encode("utf-8", "surrogatepass"))
        head = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hmac.digest(self._secret, head + data, hashlib.sha256).hex()

    def holds(self, seal: str, kind: str, name: str, data: bytes) -> bool:
        """Whether `seal` is the seal of these arguments; a constant-time comparison."""
        return hmac.compare_digest(seal.encode("utf-8", "replace"), self.seal(kind, name, data).encode())


def user_sealer(root: Path) -> Sealer:
    """The sealer for the key file that the environment names, which is created if missing; without one, a sealer without a
    secret.

    CompileError E0712 if others can use the file, its secret is too short or too long, or it lies inside the store `root`.
    """
    given = os.environ.get(KEY_FILE)
    if not given:
        return Sealer()
    path = Path(given).absolute()
    try:
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise _refused(path, "lies in the store itself")
        _create(path)
        return Sealer(_read(path))
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror or error}") from None


def _create(path: Path) -> None:
    if os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # If another process created it first, both use that secret.
    with contextlib.closing(Output(path.parent, None).opened()) as folder, contextlib.suppress(FileExistsError):
        folder.create(path.name, f"{secrets.token_hex(32)}\n".encode(), 0o600)


def _read(path: Path) -> bytes:
    try:
        secret = read_regular(path, LARGEST_FILE, forbidden_mode=USED_BY_OTHERS).strip()
    except ValueError as error:
        raise _refused(path, str(error)) from None
    if not SHORTEST <= len(secret) <= LONGEST:
        raise _refused(path, f"holds {len(secret)} bytes; a key has {SHORTEST} to {LONGEST}")
    return secret


def _refused(path: Path, reason: str) -> CompileError:
    hint = f"name a file of your own outside the store in `{KEY_FILE}`, or one that does not exist yet"
    return CompileError(Diagnostic("E0712", f"the key file `{path}` {reason}", hint=hint))
