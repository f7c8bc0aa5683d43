"""Proofs as a build makes them: of the kernel's claims (`tilec.ir.claims`), which are read from their text."""

from __future__ import annotations

from tilec.ir.claims import claims
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.passes.prover import Proofs, prove_claims


def proofs_of_a_build(function: Function) -> Proofs:
    """What `tilec build` has of a kernel. Raises CompileError where a build does, about the kernel's own dtypes."""
    return prove_claims(parse_function(claims(function)), lambda: function)
