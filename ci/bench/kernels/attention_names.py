"""What both halves of the study of attention use: `attention`, which builds and makes tables, and `attention_gpu`, which needs
torch: heads, and the libraries that candidates are compared with."""

from __future__ import annotations

from typing import Final

HEADS, GROUP = 8, 4
WIDTH: Final = 128
LIBRARIES: Final = {"cuDNN": "CUDNN_ATTENTION", "FlashAttention-2": "FLASH_ATTENTION"}
"""By its name in tables, torch's name of a backend."""
