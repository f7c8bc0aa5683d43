"""Runs kernels on the interpreter beside their references: launches, inputs, and the project that `tilec new` writes."""
