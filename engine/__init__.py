"""Qwen3 inference on prebuilt CUBINs: checkpoints and the description of a step go in, tokens come out. No compiler, no torch."""
