"""Inference of Qwen3 and Llama 3 on prebuilt CUBINs, without a compiler and without torch.

Generates tokens from a checkpoint and the declaration of a step.
"""

from engine import startup

startup.begin(__name__)  # before any other import
