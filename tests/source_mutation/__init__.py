"""Mistakes in tilec's own source: where they can be made, which tests should see them.

`ci/bench/source_mutants.py` runs them.
"""
