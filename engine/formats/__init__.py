"""Quantised checkpoints as they are published: `quantization_config` and a module's tensors go in, a `forms.Form` comes out.

One file for each format says which tensors a module has and how they are packed; `forms` has the layouts that all formats are
repacked into, `dequantise` their values in f32.
"""
