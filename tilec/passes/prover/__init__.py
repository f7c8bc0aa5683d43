"""Shows a kernel safe for every launch that its contract allows: bounds, races, coverage, order, wrap, aliasing.

`prove` says the order of work; each property has a file. Index values become `terms` (`index_terms`, `coordinates`), accesses
become statement instances (`accesses`), and the `ladder` discharges formulas over both, with `integer_sets` as its last rung.
"""

from __future__ import annotations

from tilec.passes.prover.divisors import positive_divisions
from tilec.passes.prover.prove import Proofs, prove

__all__ = ["Proofs", "positive_divisions", "prove"]
