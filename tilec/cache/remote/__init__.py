"""The cache that a team shares: remote layers below the local store, read-through and write-back.

In: remotes that the user named, or that a build.toml names and the user allowed (`address`), and a key of the team (`signer`).
Out: verified products of a key (`remote.Remote.fetch`). What this build makes is written back in the background.

A remote can only slow a build down. One object of a remote is one entry (`envelope`): a record of the key and the sha256 of
every product, signed if there is a key, followed by the products. Size, signature, key, every digest, and the agreement of the
products with the key (`tilec.cache.products`) are checked before anything is used or stored locally. An entry that fails a
check is counted, reported and dropped. The local store seals entries with the user's own secret and accepts no other seal.
Every operation has a timeout, a failing layer is skipped for a while (`guard`), and the end of a build waits for at most
`remote.FLUSH`.

With a key, the owners of the secret (HMAC) or of the private key (Ed25519) are trusted. Without one, everybody who can write to
the remote, or to the connection, is trusted: digests detect damage but no forgery.
"""
