"""Analyses of the tile IR: ranges of scalars and tiles, divisibility, and dependences of indices.

`dataflow` is the solver; `ranges` (with `selected_ranges`, `declared_ranges`) and `divisibility` are its instances. `relevance`
finds the operations that indices, bounds and conditions depend on.
"""
