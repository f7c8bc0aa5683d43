"""Reads what a project says: build.toml, models, choices that were measured. Files in, a plan of artifacts out."""
