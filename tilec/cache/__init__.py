"""The content-addressed store of stage products.

The contract: a key is the hash of everything a stage depends on (`key`); a digest is the hash of bytes. The index maps a key
to the digests of the stage's outputs; blobs are files named by digest. Writes are atomic (temporary file, fsync, rename), so
many processes read and write at once and one that dies leaves nothing half-written. A damaged entry is a miss that says so.
A store that cannot be written is an error (E0701). One process at a time makes a key; the others wait for its result.
Integrity is not authenticity: whoever can write the folder can replace a product together with its digest.

    <store>/v1/index/            diskcache: key -> outputs, time of last use
    <store>/v1/blobs/<2 hex>/<sha256>
    <store>/v1/locks             byte ranges, one per key, locked while a key is being made
    <store>/v1/files.json        sha256 of source files by path, size and time
"""

from __future__ import annotations

from tilec.cache.explain import reasons
from tilec.cache.files import FileDigests, write_atomically
from tilec.cache.key import key_of
from tilec.cache.store import Entry, Store

__all__ = ["Entry", "FileDigests", "Store", "key_of", "reasons", "write_atomically"]
