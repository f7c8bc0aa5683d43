"""Bundles in OCI registries: pushes bundles as shared blobs, and pulls them with every byte verified by digest.

    reference      oci://HOST/REPOSITORY[:TAG|@DIGEST]
    oci            manifests and indexes: written on push, validated as untrusted input on pull
    parts          a bundle as blobs, and their offsets in the file
    connection     one HTTP exchange, bounded in time and bytes
    authorization  Basic, and Bearer with tokens; `credentials` reads docker's configuration
    client         the verbs of the distribution specification, with retries; `upload` is the longest of them
    push, pull     the commands

It implements the OCI distribution specification 1.1 on Python's own HTTP and TLS. oras-py 0.2.43 was evaluated first: it
accepts bytes without comparing their digest, cannot resume, sends the password to any realm in a challenge, and reads responses
of any length. Requests and httpx follow redirects, keep cookies, decompress bodies and read netrc unless each is disabled, and
none of them bounds a whole exchange. With `http.client` instead, a machine that runs bundles can pull them without another
package.

Registries are untrusted. One can withhold bundles, or serve an older index under a tag (if that matters, pull by digest or
require signed attestations). Any other manipulation is refused before a file gets a bundle's name.
"""
