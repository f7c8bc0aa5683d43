"""Mistakes in tilec's own source: where they can be made, which tests should see them.

`ci/bench/judges.py source_mutants` runs them.
"""
