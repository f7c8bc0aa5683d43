"""Bundles: packs the artifacts of a build into one file per model (or set of kernels) and architecture, and compares bundles.

`pack` writes what `tilec.project` built for a model in the format of `tilec.artifact.bundle_format`; `describe` converts a
bundle to plain data, `compare` lists the differences of two; `ratchet` compares a build with golden files of proofs and
resources. Bundles are read with `tilec.runtime.open_bundle`, so what was packed is verified by the code that will load it.
"""
