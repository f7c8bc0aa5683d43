"""Uploads a blob to a repository, unless it exists there.

A blob of one chunk needs a POST and a PUT; a larger one is sent in chunks (PATCH). After a broken connection, the registry is
asked for its offset and the upload resumes there (distribution specification 1.1, "Pushing a blob in chunks"). If the registry
cannot report it, the upload restarts.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from tilec.ship.registry.client import MAX_ERROR, Client
from tilec.ship.registry.connection import Broken, Response
from tilec.ship.registry.oci import Descriptor

CHUNK: Final = 4 << 20
MAX_CHUNK: Final = 64 << 20
_RANGE: Final = re.compile(r"(?:bytes=)?0-(\d{1,18})", re.ASCII)
_OCTETS: Final = {"Content-Type": "application/octet-stream"}


def upload(client: Client, wanted: Descriptor, data: bytes | memoryview, *, chunk: int = CHUNK) -> bool:
    """Store a blob; returns False if it existed. RegistryError as `Client`."""
    if client.again(lambda: _is_there(client, wanted)):
        return False
    session = _Session(client, wanted, data, chunk)
    client.again(session.resume)
    return True


def _is_there(client: Client, wanted: Descriptor) -> bool:
    with client.request("HEAD", f"blobs/{wanted.digest}") as response:
        response.body(MAX_ERROR)
        return response.status == 200 and response.length in (None, wanted.size)


class _Session:
    """A resumable upload."""

    def __init__(self, client: Client, wanted: Descriptor, data: bytes | memoryview, chunk: int) -> None:
        self._client, self._wanted, self._data, self._chunk = client, wanted, memoryview(data), chunk
        self._location, self._offset, self._begun = "", 0, False

    def resume(self) -> None:
        """Upload from the beginning, or resume where it broke off."""
        if self._begun and _is_there(self._client, self._wanted):
            return  # the upload was complete, only its last response was lost
        if self._offset and not self._query_offset():
            self._location, self._offset = "", 0
        self._begun = True
        if not self._location:
            self._start()
        size = len(self._data)
        while size > self._chunk and self._offset < size:
            self._send_chunk(self._data[self._offset : self._offset + self._chunk])
        self._finish(self._data if size <= self._chunk else memoryview(b""))

    def _start(self) -> None:
        with self._client.request("POST", "blobs/uploads/") as response:
            if response.status != 202:
                raise self._client.refused(response, "beginning an upload")
            self._moved(response)
            least = response.header("OCI-Chunk-Min-Length")
            if least.isascii() and least.isdigit() and len(least) < 10:
                self._chunk = min(max(self._chunk, int(least)), MAX_CHUNK)

    def _moved(self, response: Response) -> None:
        response.body(MAX_ERROR)
        self._location = response.header("Location")

    def _send_chunk(self, part: memoryview) -> None:
        headers = _OCTETS | {"Content-Range": f"{self._offset}-{self._offset + len(part) - 1}"}
        with self._client.request("PATCH", self._location, headers=headers, body=part) as response:
            if response.status == 416:  # the registry's offset differs; `resume` asks for it
                response.body(MAX_ERROR)
                raise Broken("it reports another upload offset")
            if response.status not in (202, 204):
                raise self._client.refused(response, "a chunk of a blob")
            self._moved(response)
        self._offset += len(part)

    def _query_offset(self) -> bool:
        """Ask the registry for its offset and resume there; False if it cannot report one."""
        with self._client.request("GET", self._location) as response:
            found = _RANGE.fullmatch(response.header("Range"))
            if response.status != 204 or found is None or not 0 < int(found[1]) < len(self._data):
                response.body(MAX_ERROR)
                return False
            self._moved(response)
        self._offset = int(found[1]) + 1
        return bool(self._location)

    def _finish(self, rest: memoryview) -> None:
        end = urllib.parse.urlencode({"digest": self._wanted.digest})
        location = f"{self._location}{'&' if '?' in self._location else '?'}{end}"
        with self._client.request("PUT", location, headers=_OCTETS, body=rest) as response:
            if response.status == 416:
                response.body(MAX_ERROR)
                raise Broken("it reports another upload offset")
            if response.status != 201:
                raise self._client.refused(response, f"the blob {self._wanted.digest[:19]}")
            response.body(MAX_ERROR)
