"""The cache that a team shares: layers behind the local store, read through and written back.

In: remotes that the user named, or that a build.toml names and the user allowed (`address`), and a key of the team (`signer`).
Out: verified products of a key (`remote.Remote.fetch`), and what this build made, written back behind its back.

What holds. A remote can make a build slower, and can do nothing else to it. One object of a remote is one entry (`envelope`):
a record that names the key and the sha256 of every product, signed where there is a key, and then the products. Before
anything of it is used, or kept in the local store, the size, the signature, the key, every digest and the agreement of the
products with the key (`tilec.cache.products`) are checked; what fails one of them is counted, told and dropped. The local
store then seals the entry with the user's own secret: no seal of anybody else enters it. Every operation is bounded in time,
a layer that fails is left alone for a while (`guard`), and at the end of a build nothing waits longer than `remote.FLUSH`.

Who is believed: with a key, those who have the secret (HMAC), or the private key (Ed25519). Without one, everybody who can
write to the remote, and everybody on the way to it: digests find damage, and no forgery.
"""
