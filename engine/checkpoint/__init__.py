"""Weights from a model folder: safetensors files in, the tensors that a step's kernels read out."""
