"""Qwen3 inference on prebuilt CUBINs, without a compiler and without torch.

Checkpoints and the description of a step go in, tokens come out.
"""

from engine import startup

startup.begin(__name__)  # before any other import
