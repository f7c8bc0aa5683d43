"""Instruction families, one module per family, and what they keep between their steps. `families` registers them."""
