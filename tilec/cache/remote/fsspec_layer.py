"""Folders and object stores, through `fsspec`: files and NFS, S3, Google Cloud Storage, Azure, SFTP and others.

An entry is one object `URL/<key>`. On a file system an object is written under a temporary name and renamed; object stores
write atomically. Credentials and endpoints come from each library's own configuration (for S3 the `AWS_...` variables, with
`AWS_ENDPOINT_URL`, and `~/.aws`), never from a build.toml. A lease is an object that is created only if it does not exist;
stores without exclusive creation have no leases.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any, Final

import fsspec

from tilec.cache.remote import lease_files
from tilec.cache.remote.address import Address
from tilec.cache.remote.layer import Nonsense, Oversized, entry_bytes

RENAMED: Final = ("file", "sftp", "ssh", "smb", "hdfs")
"""Schemes of file systems, on which a renamed temporary file makes the write atomic."""
CREATES: Final = ("s3", "s3a", "gs", "gcs")
"""Schemes of object stores whose client can create an object atomically only if it does not exist."""


class FsspecLayer:
    """One folder of a store."""

    def __init__(self, address: Address) -> None:
        scheme = address.scheme
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if scheme in ("s3", "s3a"):
            seconds = address.seconds
            options["config_kwargs"] = {"connect_timeout": seconds, "read_timeout": seconds, "retries": {"max_attempts": 0}}
        elif scheme == "file":
            options["auto_mkdir"] = True
        # Any: the library is untyped
        open_url: Any = vars(fsspec)["url_to_fs"]
        self._files, folder = open_url(address.url, **options)
        if hasattr(self._files, "retries"):
            self._files.retries = 1  # `guard` retries
        self._base = str(folder).rstrip("/")
        self._scheme = scheme

    def get(self, key: str, limit: int) -> bytes | None:
        """Reads a range of `limit + 1` bytes: the last byte shows that the object is too large."""
        path = f"{self._base}/{key}"
        try:
            if self._scheme == "file" and self._files.size(path) > limit:  # the size is cheap, the read is not
                raise Oversized
            found = self._files.cat_file(path, start=0, end=limit + 1)
        except FileNotFoundError:
            return None
        return entry_bytes(found, limit)

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Without `replace` a separate, non-atomic check for the object precedes the write."""
        path = f"{self._base}/{key}"
        if not replace and self._files.exists(path):
            return False
        if self._scheme not in RENAMED:
            self._files.pipe_file(path, data)
            return True
        if self._scheme != "file":
            self._files.makedirs(self._base, exist_ok=True)
        temporary = f"{self._base}/.tmp-{secrets.token_hex(8)}"
        try:
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._files.rm_file(temporary)
            raise
        return True

    def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """The lease object contains the holder and the expiry; the next builder removes an expired one."""
        path = f"{self._base}/lease-{key}"
        if self._scheme == "file":
            return lease_files.claim(Path(path), holder, seconds)
        if self._scheme not in CREATES:
            return None
        text = lease_files.lease_text(holder, seconds).encode()
        if self._create(path, text):
            return True
        known, until = self._lease(path)
        if known == holder:
            self._files.pipe_file(path, text)
            return True
        if lease_files.is_in_force(until, seconds):
            return False
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)
        return self._create(path, text)

    def _create(self, path: str, data: bytes) -> bool:
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "pre-conditions" in str(error) or "At least one" in str(error):
                return False
            raise
        return True

    def _lease(self, path: str) -> tuple[str, float]:
        try:
            found = self._files.cat_file(path, start=0, end=lease_files.LONGEST)
            return lease_files.parsed((entry_bytes(found, lease_files.LONGEST) or b"").decode("ascii", "replace"))
        except (FileNotFoundError, Nonsense):
            return "", 0.0

    def release(self, key: str, holder: str) -> None:
        """Remove the lease object if it is the holder's."""
        path = f"{self._base}/lease-{key}"
        if self._scheme == "file":
            lease_files.release(Path(path), holder)
        elif self._lease(path)[0] == holder:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(path)

    def close(self) -> None:
        """Do nothing: the library closes its own sessions."""
