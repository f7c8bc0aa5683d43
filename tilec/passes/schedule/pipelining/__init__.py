"""Loops that feed `mma` become pipelines: copies run ahead through shared memory while tensor cores multiply."""
