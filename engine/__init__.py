"""Qwen3 inference on prebuilt CUBINs. Nothing is here yet: the kernels, their proofs and the launcher come first."""
