"""The content-addressed store of stage products.

The contract: a key is the hash of everything a stage depends on (`key`); a digest is the hash of bytes. An entry maps a key
to the digests of the stage's outputs; blobs are files named by digest. Writes are atomic (temporary file, rename), so many
processes read and write at once and one that dies leaves nothing half-written. Nothing waits for the disk: what a machine
that loses power did not write is damage. A damaged entry is a miss that says so. A store that cannot be written is an error
(E0701). One process at a time makes a key; the others wait for its result.

Nothing that is read is trusted: only plain files of a bounded size, in folders held open, are read, by strict readers, and no
name in the store is ever a path. The store lies in the user's cache folder and is refused where others could have written to it
(`location`, E0711), or it is shared under a secret (`seal`): without either, whoever can write to the folder can replace a
product together with its digest. All projects of a user share it; keys hold nothing that belongs to one project.

    <store>/v2/blobs/<sha256>
    <store>/v2/entries/<key>       outputs by name and digest; its time of modification is that of its last use
    <store>/v2/notes/<sha256>      texts by name: what a kernel imports, what artifacts were made of, digests of files by stamp
    <store>/v2/locks               byte ranges, one per key, locked while a key is being made
    <store>/v2/{entries,notes}-<id>    the same, sealed by the secret of that id
"""

from __future__ import annotations

from tilec.cache.explain import reasons
from tilec.cache.files import FileDigests
from tilec.cache.key import key_of
from tilec.cache.location import store_root
from tilec.cache.store import Entry, Store

__all__ = ["Entry", "FileDigests", "Store", "key_of", "reasons", "store_root"]
