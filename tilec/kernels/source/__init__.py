"""The kernels of the library, a file for each; `../build.toml` says for which constants they are prebuilt.

`reference_*.py` compute the same in NumPy and float64, and `baseline_*.py` with PyTorch's operators.
"""
