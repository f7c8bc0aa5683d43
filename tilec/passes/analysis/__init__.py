"""Facts about values, for whoever asks: ranges of scalars and tiles, divisibility, and what a value depends on.

`dataflow` is the solver; `ranges` (with `selected_ranges`, `declared_ranges`) and `divisibility` are its
instances; `relevance` says which values can matter to an index.
"""
