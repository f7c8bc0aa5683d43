"""Mutants of the shipped kernels, to compare the prover with the interpreter over all blocks."""
