"""Bundles: artifacts of the build in, one file per model and architecture out, and what two bundles differ in.

`pack` takes what `tilec.project` made for a model and writes it in the form of `tilec.bundle_format`; `describe` turns a bundle
into plain data, `compare` finds the differences of two; `ratchet` holds the build to the proofs and resources of golden files.
Reading is `tilec.runtime.open_bundle`, so that what was packed is checked by what will load it.
"""
