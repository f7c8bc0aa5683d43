"""Registries: a real one, a lying one, and clients of both."""
