"""Registries: a real one, one that lies, and what speaks to both."""
