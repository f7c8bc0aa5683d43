"""Bundles in OCI registries: bundles go in as blobs that bundles share, the same bytes come out, every one compared by digest.

    reference      oci://HOST/REPOSITORY[:TAG|@DIGEST]
    oci            the manifests and indexes that a push writes and a pull believes nothing of
    parts          a bundle as its blobs, and where each lies in the file
    connection     one exchange over HTTP, bounded in time and bytes
    authorization  who we are: Basic, and Bearer with tokens; `credentials` asks docker's configuration
    client         the verbs of the distribution specification, with retries; `upload` is the longest of them
    push, pull     what the commands do

It speaks the OCI distribution specification 1.1 over Python's own HTTP and TLS. oras-py 0.2.43 was read first: it takes bytes
without comparing them with their digest, resumes neither way, answers a challenge of any realm with the user's password, and
reads answers of any length. Requests and httpx follow redirects, keep cookies, expand bodies and read netrc unless each is
turned off, and none of them bounds the time of a whole exchange; what remains of use below that is `http.client`, and with it a
machine that runs bundles can pull them with no package more.

A registry is believed in nothing: it can withhold, and can serve an older index under a tag (ask by digest, or rely on signed
attestations, where that matters); every other lie is refused before anything has the name of a bundle.
"""
