"""Runs kernels on the interpreter against their references: launches, inputs, and the project that `tilec new` writes."""
