"""Proves a kernel safe for every launch that its contract allows: bounds, races, coverage, order, wrap, aliasing.

`prove` gives the order of work; each property has a file. Index values become polynomials (`terms`, `index_terms`,
`coordinates`), accesses become statement instances (`accesses`), and `ladder` discharges formulas over both, with isl
(`integer_sets`) as the most expensive method.
"""

from __future__ import annotations

from tilec.passes.prover.divisors import positive_divisions
from tilec.passes.prover.prove import Proofs, prove, prove_claims

__all__ = ["Proofs", "positive_divisions", "prove", "prove_claims"]
