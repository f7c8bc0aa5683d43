"""Weights of a model folder: reads safetensors files and returns the tensors that a step's kernels use."""
