"""Mutants of the shipped kernels, and who is right about them: the prover or the interpreter over all blocks."""
