"""Signatures of bundles and what they state: provenance (SLSA v1) and a bill of materials (CycloneDX 1.6)."""
