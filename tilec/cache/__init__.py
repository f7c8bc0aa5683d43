"""The content-addressed store of stage products.

A key is the hash of everything a stage depends on (`key`). An entry maps a key to the digests of the stage's outputs; blobs are
files named by digest. Writes are atomic (temporary file, rename) and are not synced to disk: a power loss can damage entries.
A damaged entry is a reported miss. A store that cannot be written is E0701. One process at a time makes a key; others wait.

Nothing read is trusted: strict readers accept only plain files of a bounded size, and no name in the store is used as a path.
Either only the user can write to the folder (`location`, E0711), or a secret seals the records (`seal`). Otherwise anyone with
write access could replace a product together with its digest. All projects of a user share the store.

    <store>/v2/blobs/<sha256>
    <store>/v2/entries/<key>           outputs by name and digest; the modification time is the time of last use
    <store>/v2/notes/<sha256>          texts by name: imports of a kernel, inputs of artifacts, digests of files by stamp
    <store>/v2/locks                   byte ranges, one per key, locked while a key is being made
    <store>/v2/{entries,notes}-<id>    the same, sealed by the secret with that id
"""

from __future__ import annotations

from tilec.cache.explain import reasons
from tilec.cache.files import FileDigests
from tilec.cache.key import key_of
from tilec.cache.location import store_root
from tilec.cache.store import Entry, Store

__all__ = ["Entry", "FileDigests", "Store", "key_of", "reasons", "store_root"]
