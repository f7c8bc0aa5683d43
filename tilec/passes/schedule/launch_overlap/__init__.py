"""Programmatic dependent launch: where a kernel waits for the one before it, and which loads it issues before that wait."""
